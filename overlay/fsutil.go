package overlay

import (
	"errors"
	"io"
	"os"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// overlayXattrs are overlayfs's own. Of these only opaqueXattr means
	// anything in a layer that lies below others.
	overlayXattrs = "trusted.overlay."
	opaqueXattr   = "trusted.overlay.opaque"
)

type xattr struct {
	name  string
	value []byte
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }

// openDir opens a directory below another, not following a symbolic link at
// its end.
func openDir(dirfd int, name string) (*os.File, error) {
	fd, err := unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openFile opens a regular file below a directory for reading. The caller
// has seen that it is one; that it still is, is checked.
func openFile(dirfd int, name string) (*os.File, error) {
	fd, err := unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOATIME, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = unix.EINVAL
		unix.Close(fd)
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// lstatAt is fstatat without following a symbolic link.
func lstatAt(dirfd int, name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return st, &os.PathError{Op: "lstat", Path: name, Err: err}
	}
	return st, nil
}

// readNames lists a directory, sorted by bytes.
func readNames(d *os.File) ([]string, error) {
	if _, err := d.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	sort.Strings(names)
	return names, nil
}

func readlinkAt(dirfd int, name string) (string, error) {
	for size := 256; ; size *= 2 {
		b := make([]byte, size)
		n, err := unix.Readlinkat(dirfd, name, b)
		if err != nil {
			return "", &os.PathError{Op: "readlink", Path: name, Err: err}
		}
		if n < size {
			return string(b[:n]), nil
		}
	}
}

// readXattrs reads all extended attributes of an open file, sorted by name.
func readXattrs(fd int) ([]xattr, error) {
	return collectXattrs(
		func(b []byte) (int, error) { return unix.Flistxattr(fd, b) },
		func(name string, b []byte) (int, error) { return unix.Fgetxattr(fd, name, b) })
}

// readXattrsAt reads those of an entry that may be of any type. The path is
// made of a descriptor and one name, so nothing but the name is looked up.
func readXattrsAt(dir *os.File, name string) ([]xattr, error) {
	path := fdPath(dir) + "/" + name
	return collectXattrs(
		func(b []byte) (int, error) { return unix.Llistxattr(path, b) },
		func(name string, b []byte) (int, error) { return unix.Lgetxattr(path, name, b) })
}

func collectXattrs(list func([]byte) (int, error), get func(string, []byte) (int, error)) ([]xattr, error) {
	names, err := grow(list)
	if errors.Is(err, unix.EOPNOTSUPP) || len(names) == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var xs []xattr
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		v, err := grow(func(b []byte) (int, error) { return get(name, b) })
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, err
		}
		xs = append(xs, xattr{name, v})
	}
	sort.Slice(xs, func(i, j int) bool { return xs[i].name < xs[j].name })
	return xs, nil
}

// grow calls a function that fills a buffer until the buffer is large enough.
func grow(f func([]byte) (int, error)) ([]byte, error) {
	var small [256]byte
	n, err := f(small[:])
	if err == nil {
		return append([]byte(nil), small[:n]...), nil
	}
	for size := 4096; errors.Is(err, unix.ERANGE) && size <= 1<<17; size *= 2 {
		b := make([]byte, size)
		if n, err = f(b); err == nil {
			return b[:n], nil
		}
	}
	return nil, err
}

// setTimes sets access and modification time of an entry, or of the open
// file itself if name is "".
func setTimes(dirfd int, name string, atime, mtime unix.Timespec) error {
	flags := unix.AT_SYMLINK_NOFOLLOW
	if name == "" {
		flags = unix.AT_EMPTY_PATH
	}
	return unix.UtimesNanoAt(dirfd, name, []unix.Timespec{atime, mtime}, flags)
}

func isWhiteout(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

func isDir(st *unix.Stat_t) bool  { return st.Mode&unix.S_IFMT == unix.S_IFDIR }
func isFile(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFREG }

// isOpaque says whether an open directory hides what layers below have.
func isOpaque(fd int) (bool, error) {
	var b [2]byte
	n, err := unix.Fgetxattr(fd, opaqueXattr, b[:])
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ERANGE) {
		return false, nil
	}
	return err == nil && n == 1 && b[0] == 'y', err
}
