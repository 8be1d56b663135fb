package stem

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"cairn/sandbox/stem/wire"

	"golang.org/x/sys/unix"
)

// inside is how paths below the slot's directory are resolved: no link of any kind, and
// nothing outside the directory or on another mount.
const inside = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// open opens path, relative to the slot's directory, as a file of the wanted type (S_IFREG,
// S_IFDIR, S_IFSOCK). Anything else in its place is a Tampered error; that it does not
// exist, a NotFound error.
func (c *Client) open(op, path string, flags int, wanted uint32) (int, error) {
	how := &unix.OpenHow{
		Flags:   uint64(flags | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC | unix.O_NOCTTY),
		Resolve: inside,
	}
	if flags&unix.O_PATH != 0 {
		how.Flags &^= unix.O_NONBLOCK | unix.O_NOCTTY
	}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o600
	}
	var fd int
	err := c.withDir(func(dir int) (err error) {
		for {
			// EAGAIN: a rename went on meanwhile, so the kernel can't vouch for the result.
			fd, err = unix.Openat2(dir, path, how)
			if err != unix.EINTR && err != unix.EAGAIN {
				return err
			}
		}
	})
	if err != nil {
		return -1, openError(op, path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, &Error{Code: Internal, Op: op, Err: err}
	}
	if st.Mode&unix.S_IFMT != wanted {
		unix.Close(fd)
		return -1, &Error{Code: Tampered, Op: op, Err: fmt.Errorf("%s has the wrong type (mode %#o)", path, st.Mode)}
	}
	return fd, nil
}

func openError(op, path string, err error) error {
	code := Internal
	switch {
	case errors.Is(err, unix.ENOENT):
		code = NotFound
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EXDEV),
		errors.Is(err, unix.ENXIO), errors.Is(err, unix.EISDIR):
		code = Tampered
	case errors.Is(err, unix.EEXIST):
		code = Exists
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EMFILE),
		errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		code = Limit
	}
	return &Error{Code: code, Op: op, Err: &os.PathError{Op: "open", Path: path, Err: err}}
}

func processPath(id, name string) string { return wire.DirProcess + "/" + id + "/" + name }

func procFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// openDir opens a directory for use with the *at calls.
func (c *Client) openDir(op, path string) (int, error) {
	return c.open(op, path, unix.O_PATH|unix.O_DIRECTORY, unix.S_IFDIR)
}

// mkdir makes a directory below parent, owned like the slot's directory.
func (c *Client) mkdir(op string, parent int, name string) error {
	if err := unix.Mkdirat(parent, name, 0o700); err != nil {
		return openError(op, name, err)
	}
	// The parent may be the sandbox's: what is there now may not be what was just made. A
	// change of owner must not follow a link.
	if err := unix.Fchownat(parent, name, c.uid, c.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &Error{Code: Internal, Op: op, Err: err}
	}
	return nil
}

// prepare makes p/<id> and the file stdin in it. Without input the stem makes p/<id>.
func (c *Client) prepare(op, id string, stdin io.Reader) error {
	parent, err := c.openDir(op, wire.DirProcess)
	if errors.Is(err, NotFound) {
		err = c.withDir(func(dir int) error { return c.mkdir(op, dir, wire.DirProcess) })
		if err != nil && !errors.Is(err, Exists) {
			return err
		}
		parent, err = c.openDir(op, wire.DirProcess)
	}
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	if err := c.mkdir(op, parent, id); err != nil {
		return err
	}
	fd, err := c.open(op, processPath(id, wire.FileStdin), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, unix.S_IFREG)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), wire.FileStdin)
	defer f.Close()
	if err := f.Chown(c.uid, c.gid); err != nil {
		return &Error{Code: Internal, Op: op, Err: err}
	}
	if _, err := io.Copy(f, stdin); err != nil {
		code := Internal
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			code = Limit
		}
		return &Error{Code: code, Op: op, Err: fmt.Errorf("write the input: %w", err)}
	}
	return nil
}

// discard removes p/<id> as far as it holds only what belongs there; it is for a process
// that was not started. The rest goes with the slot.
func (c *Client) discard(id string) {
	dir, err := c.openDir("discard", wire.DirProcess+"/"+id)
	if err != nil {
		return
	}
	for _, name := range []string{wire.FileStdin, wire.FileStdout, wire.FileStderr, wire.FilePID, wire.FilePIDNew, wire.FileStatusNew, wire.FileStatus} {
		_ = unix.Unlinkat(dir, name, 0)
	}
	unix.Close(dir)
	if parent, err := c.openDir("discard", wire.DirProcess); err == nil {
		_ = unix.Unlinkat(parent, id, unix.AT_REMOVEDIR)
		unix.Close(parent)
	}
}

// readRecord reads a record of at most wire.MaxRecord bytes.
func (c *Client) readRecord(op, path string) ([]byte, error) {
	fd, err := c.open(op, path, unix.O_RDONLY, unix.S_IFREG)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, wire.MaxRecord+1)
	n, err := pread(fd, buf, 0)
	if err != nil {
		return nil, &Error{Code: Internal, Op: op, Err: err}
	}
	if n > wire.MaxRecord {
		return nil, &Error{Code: Tampered, Op: op, Err: fmt.Errorf("%s is too long", path)}
	}
	return buf[:n], nil
}

// pread fills buf from offset as far as the file goes.
func pread(fd int, buf []byte, offset int64) (int, error) {
	n := 0
	for n < len(buf) {
		m, err := unix.Pread(fd, buf[n:], offset+int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return n, err
		}
		if m == 0 {
			break
		}
		n += m
	}
	return n, nil
}
