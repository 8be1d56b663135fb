package pages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"

	"golang.org/x/sys/unix"
)

const (
	pageSize  = 4096
	chunkSize = 1 << 20   // bytes compressed at a time
	scanSize  = 256 << 10 // bytes read and compared at a time: they stay in the processor's cache

	parentDir = "parent" // CRIU's name for the images that entries in_parent refer to
	maxDepth  = 3        // directories of images on top of each other
)

// open opens a file of a directory of images for reading.
func open(dir *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = &FormatError{File: name, Message: "not a regular file"}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openDir opens a directory below another one; "." is that one itself, with a position
// of its own.
func openDir(dir *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// makeDir makes a directory below another one, unless it is there, and opens it.
func makeDir(dir *os.File, name string) (*os.File, error) {
	if err := unix.Mkdirat(int(dir.Fd()), name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("make %s: %w", name, err)
	}
	return openDir(dir, name)
}

// create makes a new file for writing.
func create(dir *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// list gives the names of the files in a directory, sorted, and whether it has a parent.
// Anything else in it is an error.
func list(dir *os.File) (names []string, parent bool, err error) {
	d, err := openDir(dir, ".")
	if err != nil {
		return nil, false, err
	}
	defer d.Close()
	entries, err := d.ReadDir(-1)
	if err != nil {
		return nil, false, fmt.Errorf("read the directory of images: %w", err)
	}
	for _, e := range entries {
		switch {
		case e.Type().IsRegular():
			names = append(names, e.Name())
		case e.IsDir() && e.Name() == parentDir:
			parent = true
		default:
			return nil, false, &FormatError{File: e.Name(), Message: "not a regular file"}
		}
	}
	sort.Strings(names)
	return names, parent, nil
}

// link makes to a hard link of from; or a copy, where there can't be one (another file
// system, too many links). It returns the bytes that were written.
func link(ctx context.Context, fromDir *os.File, from string, toDir *os.File, to string) (int64, error) {
	err := unix.Linkat(int(fromDir.Fd()), from, int(toDir.Fd()), to, 0)
	if err == nil {
		return 0, nil
	}
	if !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EMLINK) {
		return 0, fmt.Errorf("link %s: %w", from, err)
	}
	src, err := open(fromDir, from)
	if err != nil {
		return 0, err
	}
	defer src.Close()
	dst, err := create(toDir, to)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(dst, &reader{ctx: ctx, r: src})
	if err = errors.Join(err, dst.Close()); err != nil {
		return n, fmt.Errorf("copy %s: %w", from, err)
	}
	return n, nil
}

// linkOnce is link, unless the name is there already.
func linkOnce(ctx context.Context, fromDir *os.File, from string, toDir *os.File, to string) (int64, error) {
	n, err := link(ctx, fromDir, from, toDir, to)
	if errors.Is(err, unix.EEXIST) {
		return 0, nil
	}
	return n, err
}

// reader ends with the context.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r *reader) Read(b []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}

// readAt reads exactly len(b) bytes.
func readAt(f *os.File, b []byte, off int64) error {
	if _, err := f.ReadAt(b, off); err != nil {
		if errors.Is(err, io.EOF) {
			return &FormatError{File: f.Name(), Message: "shorter than its pagemap says"}
		}
		return fmt.Errorf("read %s: %w", f.Name(), err)
	}
	return nil
}
