package files

import (
	"context"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// File is a regular file opened for reading. It reads what was there at Open:
// bytes that are appended later are not seen; a file that is truncated meanwhile
// ends with io.ErrUnexpectedEOF.
type File struct {
	Info Info
	f    *os.File
	r    *io.SectionReader
}

var (
	_ io.ReaderAt   = (*File)(nil)
	_ io.ReadSeeker = (*File)(nil)
)

// Size returns the size in bytes.
func (f *File) Size() int64 { return f.Info.Size }

// Read implements io.Reader.
func (f *File) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err == io.EOF {
		if at, _ := f.r.Seek(0, io.SeekCurrent); at < f.Info.Size {
			return n, io.ErrUnexpectedEOF
		}
	}
	return n, err
}

// ReadAt implements io.ReaderAt.
func (f *File) ReadAt(p []byte, off int64) (int, error) { return f.r.ReadAt(p, off) }

// Seek implements io.Seeker.
func (f *File) Seek(offset int64, whence int) (int64, error) { return f.r.Seek(offset, whence) }

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }

// Open opens the regular file that path names, following symlinks inside the
// root. The caller closes it.
// Errors: ErrNotFound, ErrIsDir, ErrNotRegular (without blocking on it),
// ErrOutside, ErrBusy when a process in the sandbox holds a lease on it.
func (r *Root) Open(ctx context.Context, path string) (*File, error) {
	if err := ctx.Err(); err != nil {
		return nil, fail("open", path, err)
	}
	f, err := r.openFile(path)
	return f, fail("open", path, err)
}

func (r *Root) openFile(p string) (*File, error) {
	node, err := r.open(p, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer node.close()
	_, name := split(trimSlashes(p))
	return r.reopen(node, name)
}

// reopen opens for reading the regular file of which node is an O_PATH
// descriptor. Only by then it is known that opening it has no effect of its own.
func (r *Root) reopen(node fd, name string) (*File, error) {
	var st unix.Statx_t
	if err := statx(int(node), "", unix.AT_EMPTY_PATH, &st); err != nil {
		return nil, err
	}
	switch t := typeOf(st.Mode); t {
	case TypeFile:
	case TypeDir:
		return nil, unix.EISDIR
	default:
		return nil, because(ErrNotRegular, "a %s has no content to read", t)
	}
	n, err := unix.Open(procPath(node), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(n), name)
	info := r.info(name, &st)
	info.Mount = false
	return &File{Info: info, f: f, r: io.NewSectionReader(f, 0, info.Size)}, nil
}

// procPath names an open file for calls that take only paths.
func procPath(f fd) string { return "/proc/self/fd/" + strconv.Itoa(int(f)) }
