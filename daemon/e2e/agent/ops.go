package main

import (
	"bytes"
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Op is one operation. Each either happens as a whole or changes nothing that a
// listing shows, so that a failed one can be left out elsewhere.
type Op struct {
	Kind     string
	Path, To []byte
	Data     []byte
	Off      int64 // bytes, or seconds since 1970
	Mode     uint32
	UID, GID int
}

// setNanos marks a time that was set on purpose.
const setNanos = 123456789

func errName(err error) string {
	if err == nil {
		return ""
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

var errNotRegular = unix.EINVAL

func (o Op) run(low *lower) error {
	p, to := string(o.Path), string(o.To)
	switch o.Kind {
	case "create", "write", "append", "truncate", "chmod", "chown", "setxattr", "removexattr", "utimes", "link", "rename":
		if err := o.possible(p, to); err != nil {
			return err
		}
		if err := low.part(p); err != nil {
			return err
		}
	}
	switch o.Kind {
	case "create":
		return write(p, o.Data, 0, unix.O_CREAT|unix.O_TRUNC)
	case "write":
		return write(p, o.Data, o.Off, 0)
	case "append":
		return write(p, o.Data, 0, unix.O_APPEND)
	case "truncate":
		return unix.Truncate(p, o.Off)
	case "mkdir":
		return os.MkdirAll(p, 0o755)
	case "deep":
		return os.MkdirAll(p+strings.Repeat("/deep", 30), 0o750)
	case "rename":
		return unix.Rename(p, to)
	case "link":
		return unix.Link(p, to)
	case "symlink":
		return unix.Symlink(to, p)
	case "chmod":
		return unix.Fchmodat(unix.AT_FDCWD, p, o.Mode, 0)
	case "chown":
		return unix.Lchown(p, o.UID, o.GID)
	case "setxattr":
		return unix.Lsetxattr(p, to, o.Data, 0)
	case "removexattr":
		return unix.Lremovexattr(p, to)
	case "utimes":
		ts := []unix.Timespec{{Sec: o.Off, Nsec: setNanos}, {Sec: o.Off, Nsec: setNanos}}
		return unix.UtimesNanoAt(unix.AT_FDCWD, p, ts, unix.AT_SYMLINK_NOFOLLOW)
	case "mkfifo":
		return unix.Mkfifo(p, 0o640)
	case "remove":
		if _, err := os.Lstat(p); err != nil {
			return err
		}
		return os.RemoveAll(p)
	}
	return errors.New("unknown operation " + o.Kind)
}

// possible refuses what would not do to both trees the same: what follows a
// symbolic link or opens something that blocks.
func (o Op) possible(p, to string) error {
	var st unix.Stat_t
	err := unix.Lstat(p, &st)
	kind := st.Mode & unix.S_IFMT
	switch o.Kind {
	case "create":
		if err == nil && kind != unix.S_IFREG {
			return errNotRegular
		}
		return nil
	case "write", "append", "truncate", "link":
		if err == nil && kind != unix.S_IFREG {
			return errNotRegular
		}
	case "chmod":
		if err == nil && kind == unix.S_IFLNK {
			return errNotRegular
		}
	case "rename":
		// Into itself, and onto what it may not replace: decided before anything
		// is copied up.
		if strings.HasPrefix(to+"/", p+"/") || strings.HasPrefix(p+"/", to+"/") {
			return unix.EINVAL
		}
	}
	return err
}

func write(p string, data []byte, off int64, flags int) error {
	fd, err := unix.Open(p, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0o644)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), path.Base(p))
	if flags&unix.O_APPEND != 0 {
		_, err = f.Write(data)
	} else if len(data) > 0 {
		_, err = f.WriteAt(data, off)
	}
	return errors.Join(err, f.Close())
}

// splitNul takes a list apart whose entries end in NUL.
func splitNul(b []byte) []string {
	var out []string
	for _, s := range bytes.Split(bytes.TrimSuffix(b, []byte{0}), []byte{0}) {
		if len(s) > 0 {
			out = append(out, string(s))
		}
	}
	return out
}
