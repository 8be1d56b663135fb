package overlay

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// copier copies entries of layers into a new layer.
type copier struct {
	reflink bool // tried first; switched off when the file system can't
}

// entry copies one entry that is no directory's content: for a directory it
// makes an empty one. The copy has everything of the original but its times
// if it is a directory, since filling it changes them: see finishDir.
// It returns how many bytes were written.
func (c *copier) entry(srcDir *os.File, src string, dstDir *os.File, dst string, st *unix.Stat_t) (int64, error) {
	d := int(dstDir.Fd())
	var n int64
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return c.file(srcDir, src, dstDir, dst, st)
	case unix.S_IFDIR:
		if err := unix.Mkdirat(d, dst, 0o700); err != nil {
			return 0, &os.PathError{Op: "mkdir", Path: dst, Err: err}
		}
	case unix.S_IFLNK:
		target, err := readlinkAt(int(srcDir.Fd()), src)
		if err != nil {
			return 0, err
		}
		if err := unix.Symlinkat(target, d, dst); err != nil {
			return 0, &os.PathError{Op: "symlink", Path: dst, Err: err}
		}
		n = int64(len(target))
	default:
		if err := unix.Mknodat(d, dst, st.Mode, int(st.Rdev)); err != nil {
			return 0, &os.PathError{Op: "mknod", Path: dst, Err: err}
		}
	}
	return n, copyMetadata(srcDir, src, dstDir, dst, st)
}

// copyMetadata gives an entry that is no regular file the owner, mode,
// extended attributes and times of another.
func copyMetadata(srcDir *os.File, src string, dstDir *os.File, dst string, st *unix.Stat_t) error {
	d := int(dstDir.Fd())
	if err := unix.Fchownat(d, dst, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "chown", Path: dst, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		// The entry was just made and is nobody else's: no symbolic link
		// can be in its place.
		if err := unix.Fchmodat(d, dst, st.Mode&0o7777, 0); err != nil {
			return &os.PathError{Op: "chmod", Path: dst, Err: err}
		}
	}
	xs, err := readXattrsAt(srcDir, src)
	if err != nil {
		return &os.PathError{Op: "read extended attributes", Path: src, Err: err}
	}
	path := fdPath(dstDir) + "/" + dst
	for _, x := range xs {
		if !keptXattr(x.name) {
			continue
		}
		if err := unix.Lsetxattr(path, x.name, x.value, 0); err != nil {
			return &os.PathError{Op: "set extended attribute " + x.name, Path: dst, Err: err}
		}
	}
	return setTimes(d, dst, st.Atim, st.Mtim)
}

// keptXattr says whether an extended attribute belongs to a layer's content.
func keptXattr(name string) bool {
	return name == opaqueXattr || !strings.HasPrefix(name, overlayXattrs)
}

func (c *copier) file(srcDir *os.File, src string, dstDir *os.File, dst string, st *unix.Stat_t) (int64, error) {
	in, err := openFile(int(srcDir.Fd()), src)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	return c.open(in, dstDir, dst, st)
}

// open copies a regular file that is open.
func (c *copier) open(in *os.File, dstDir *os.File, dst string, st *unix.Stat_t) (int64, error) {
	fd, err := unix.Openat(int(dstDir.Fd()), dst, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return 0, &os.PathError{Op: "create", Path: dst, Err: err}
	}
	out := os.NewFile(uintptr(fd), dst)
	defer out.Close()
	n, err := c.data(out, in, st.Size)
	if err != nil {
		return 0, err
	}
	if err := unix.Fchown(fd, int(st.Uid), int(st.Gid)); err != nil {
		return 0, &os.PathError{Op: "chown", Path: dst, Err: err}
	}
	if err := unix.Fchmod(fd, st.Mode&0o7777); err != nil {
		return 0, &os.PathError{Op: "chmod", Path: dst, Err: err}
	}
	xs, err := readXattrs(int(in.Fd()))
	if err != nil {
		return 0, &os.PathError{Op: "read extended attributes", Path: in.Name(), Err: err}
	}
	for _, x := range xs {
		if !keptXattr(x.name) {
			continue
		}
		if err := unix.Fsetxattr(fd, x.name, x.value, 0); err != nil {
			return 0, &os.PathError{Op: "set extended attribute " + x.name, Path: dst, Err: err}
		}
	}
	if err := setTimes(fd, "", st.Atim, st.Mtim); err != nil {
		return 0, &os.PathError{Op: "set times", Path: dst, Err: err}
	}
	return n, nil
}

// data copies a file's content: by sharing its blocks, or else each stretch
// that is not a hole.
func (c *copier) data(out, in *os.File, size int64) (int64, error) {
	if size == 0 {
		return 0, nil
	}
	if c.reflink {
		err := unix.IoctlFileClone(int(out.Fd()), int(in.Fd()))
		if err == nil {
			return 0, nil
		}
		if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EXDEV) {
			return 0, &os.PathError{Op: "reflink", Path: in.Name(), Err: err}
		}
	}
	var written int64
	for at := int64(0); at < size; {
		from, err := unix.Seek(int(in.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return 0, &os.PathError{Op: "seek data", Path: in.Name(), Err: err}
		}
		to, err := unix.Seek(int(in.Fd()), from, unix.SEEK_HOLE)
		if err != nil {
			return 0, &os.PathError{Op: "seek hole", Path: in.Name(), Err: err}
		}
		if err := copyRange(out, in, from, min(to, size)); err != nil {
			return 0, err
		}
		written += min(to, size) - from
		at = to
	}
	return written, unix.Ftruncate(int(out.Fd()), size)
}

func copyRange(out, in *os.File, from, to int64) error {
	roff, woff := from, from
	for roff < to {
		n, err := unix.CopyFileRange(int(in.Fd()), &roff, int(out.Fd()), &woff, int(min(to-roff, 1<<30)), 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EINVAL) {
			_, err := io.Copy(io.NewOffsetWriter(out, woff), io.NewSectionReader(in, roff, to-roff))
			return err
		}
		if err != nil {
			return &os.PathError{Op: "copy", Path: in.Name(), Err: err}
		}
		if n == 0 {
			return fmt.Errorf("copy %s: %w", in.Name(), io.ErrUnexpectedEOF)
		}
	}
	return nil
}
