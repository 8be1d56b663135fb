package main

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// lower makes a plain directory behave as overlayfs does with hard links that
// are in a layer below the upper: the first change to one of the names copies the
// file up, and that name is then a file of its own.
type lower struct {
	file *os.File
	inos map[uint64]bool
}

func (l *lower) read() error {
	b, err := io.ReadAll(l.file)
	l.inos = map[uint64]bool{}
	for ; len(b) >= 8; b = b[8:] {
		l.inos[binary.LittleEndian.Uint64(b)] = true
	}
	return err
}

// freeze remembers the files with several names below "/".
func (l *lower) freeze() error {
	l.inos = map[uint64]bool{}
	var out []byte
	err := filepath.WalkDir("/", func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 && !l.inos[st.Ino] {
			l.inos[st.Ino] = true
			out = binary.LittleEndian.AppendUint64(out, st.Ino)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	_, err = l.file.WriteAt(out, 0)
	return err
}

// part makes p a file of its own if it is one of several names below the upper.
func (l *lower) part(p string) error {
	if l.file == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); errors.Is(err, unix.ENOENT) {
		return nil // about to be made
	} else if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink < 2 || !l.inos[st.Ino] {
		return nil
	}
	dir := filepath.Dir(p)
	var times unix.Stat_t
	if err := unix.Lstat(dir, &times); err != nil {
		return err
	}
	tmp := filepath.Join(dir, ".parting")
	if err := duplicate(p, tmp, st); err != nil {
		return err
	}
	if err := unix.Rename(tmp, p); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, dir, []unix.Timespec{times.Atim, times.Mtim}, 0)
}

func duplicate(p, tmp string, st unix.Stat_t) error {
	in, err := os.Open(p)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err = io.Copy(out, in); err == nil {
		err = out.Chown(int(st.Uid), int(st.Gid))
	}
	if err == nil {
		err = unix.Fchmod(int(out.Fd()), st.Mode&0o7777)
	}
	attrs, e := xattrs(p)
	for name, value := range attrs {
		err = errors.Join(err, unix.Lsetxattr(tmp, name, []byte(value), 0))
	}
	return errors.Join(err, e, out.Close(), unix.UtimesNanoAt(unix.AT_FDCWD, tmp, []unix.Timespec{st.Atim, st.Mtim}, 0))
}
