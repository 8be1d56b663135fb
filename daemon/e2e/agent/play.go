package main

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// play is a process with something open. Each line on stdin makes it write once
// more through what it has; it prints what came of that.
func play(in io.Reader, out io.Writer, role string, args []string) error {
	if len(args) != 1 {
		return errors.New("one path")
	}
	step, err := prepare(role, args[0])
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		said := "ok"
		if err := step(lines.Text()); err != nil {
			said = errName(err)
		}
		if _, err := fmt.Fprintln(out, said); err != nil {
			return err
		}
	}
	if lines.Err() == nil {
		select {} // stdin is closed, the process stays
	}
	return lines.Err()
}

func prepare(role, p string) (step func(text string) error, err error) {
	switch role {
	case "writer": // keeps a file open for writing
		f, err := os.OpenFile(p, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
		return func(text string) error { _, err := f.WriteString(text); return err }, err
	case "mmap": // has it mapped shared and writable, and closed
		return mapped(p)
	case "reopen": // has it open for reading only, and opens that again for writing
		f, err := os.Open(p)
		return func(text string) error {
			w, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				return err
			}
			_, err = w.WriteString(text)
			return errors.Join(err, w.Close())
		}, err
	case "dirfd": // has the directory of it open, and makes files there
		fd, err := unix.Open(filepath.Dir(p), unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return func(text string) error {
			w, err := unix.Openat(fd, filepath.Base(p), unix.O_CREAT|unix.O_WRONLY|unix.O_APPEND, 0o644)
			if err != nil {
				return err
			}
			_, err = unix.Write(w, []byte(text))
			return errors.Join(err, unix.Close(w))
		}, err
	case "cwd": // stands in the directory of it
		err := os.Chdir(filepath.Dir(p))
		return func(text string) error {
			f, err := os.OpenFile(filepath.Base(p), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
			if err != nil {
				return err
			}
			_, err = f.WriteString(text)
			return errors.Join(err, f.Close())
		}, err
	case "idle": // has nothing open there
		return func(text string) error {
			f, err := os.OpenFile(p, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
			if err != nil {
				return err
			}
			_, err = f.WriteString(text)
			return errors.Join(err, f.Close())
		}, nil
	case "packets": // has a pipe of a kind that CRIU cannot dump
		var fds [2]int
		err := unix.Pipe2(fds[:], unix.O_DIRECT|unix.O_CLOEXEC)
		return func(string) error { _, err := unix.Write(fds[1], []byte("x")); return err }, err
	case "forks": // has children that come and go all the time
		go fork()
		return func(string) error { return nil }, nil
	case "ballast": // has memory that cannot be compressed
		const size = 48 << 20
		b := make([]byte, size)
		_, err := rand.Read(b)
		sum := sha256.Sum256(b)
		return func(string) error {
			if sha256.Sum256(b) != sum {
				return errors.New("the memory has changed")
			}
			return nil
		}, err
	}
	return nil, fmt.Errorf("unknown role %q", role)
}

func fork() {
	for {
		// It fails when the sandbox has too many processes, which is no reason to stop.
		_ = exec.Command("/bin/true").Run()
	}
}

func mapped(p string) (func(string) error, error) {
	f, err := os.OpenFile(p, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	const size = 4096
	if err := f.Truncate(size); err != nil {
		return nil, err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return func(text string) error { copy(b, text); return nil }, f.Close()
}
