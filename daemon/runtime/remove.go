package runtime

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// removeTree removes name and all below it from the directory parent. What is
// there was made by somebody hostile, who is dead: nothing is followed, and
// directories nested without end cost neither descriptors nor stack. One is open
// at a time, and the way up is its "..". nil when there is nothing.
func removeTree(parent, name string) error {
	if err := removeBelow(parent, name); err != nil {
		return fmt.Errorf("remove %s in %s: %w", name, parent, err)
	}
	return nil
}

// level is a directory on the way down.
type level struct {
	name string
	dirs []string // in it, still to be removed
}

func removeBelow(parent, name string) error {
	cur, err := openDir(unix.AT_FDCWD, parent)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { unix.Close(cur) }()
	if gone, err := removeLeaf(cur, name); gone || err != nil {
		return err
	}
	step := func(to string) error {
		fd, err := openDir(cur, to)
		if err == nil {
			unix.Close(cur)
			cur = fd
		}
		return err
	}
	down := []level{{dirs: []string{name}}}
	for {
		l := &down[len(down)-1]
		if n := len(l.dirs); n > 0 {
			next := l.dirs[n-1]
			l.dirs = l.dirs[:n-1]
			if err := step(next); err != nil {
				return err
			}
			dirs, err := removeLeaves(cur)
			if err != nil {
				return err
			}
			down = append(down, level{next, dirs})
			continue
		}
		if len(down) == 1 {
			return nil
		}
		if err := step(".."); err != nil {
			return err
		}
		if err := unix.Unlinkat(cur, l.name, unix.AT_REMOVEDIR); err != nil {
			return err
		}
		down = down[:len(down)-1]
	}
}

func openDir(at int, name string) (int, error) {
	return unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// removeLeaves removes what is no directory from a directory, and names the rest.
func removeLeaves(dir int) (dirs []string, err error) {
	fd, err := openDir(dir, ".")
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), ".")
	defer f.Close()
	for {
		names, err := f.Readdirnames(1024)
		for _, n := range names {
			gone, err := removeLeaf(fd, n)
			if err != nil {
				return nil, err
			}
			if !gone {
				dirs = append(dirs, n)
			}
		}
		if errors.Is(err, io.EOF) {
			return dirs, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// removeLeaf removes what is not a directory; false says that it is one.
func removeLeaf(dir int, name string) (bool, error) {
	err := unix.Unlinkat(dir, name, 0)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return true, nil
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.EPERM):
		return false, nil
	}
	return false, err
}
