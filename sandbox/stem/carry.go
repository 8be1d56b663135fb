package stem

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"cairn/sandbox/stem/wire"

	"golang.org/x/sys/unix"
)

// Bounds on what SaveFiles keeps and LoadFiles takes.
const (
	maxCarried     = 16 << 10 // files
	maxCarriedTail = 256 << 10
	maxCarriedFile = 64 << 20
	// carriedOffset is the PAX record with the place of the content in the file: what is
	// before it is not kept and reads as zeros.
	carriedOffset = "CAIRN.offset"
)

// CarriedFile is a file below the slot's directory that a dumped process has open.
type CarriedFile struct {
	Path string // relative to the directory
	Size int64  // bytes, at the dump; negative where that is not known: as it is now
}

// OutputSizes gives the present sizes of the outputs of these processes, by path.
func (c *Client) OutputSizes(ids []string) map[string]int64 {
	sizes := map[string]int64{}
	for _, id := range ids {
		for _, name := range []string{wire.FileStdout, wire.FileStderr} {
			path := processPath(id, name)
			fd, err := c.open("sizes", path, unix.O_PATH, unix.S_IFREG)
			if err != nil {
				continue // whoever took it away does without it
			}
			var st unix.Stat_t
			if unix.Fstat(fd, &st) == nil {
				sizes[path] = st.Size
			}
			unix.Close(fd)
		}
	}
	return sizes
}

// SaveFiles writes a tar with the files, so that a restore finds them where they are gone,
// or never were: of each output the last 256 KiB before Size, of others all of it up to
// Size. A file that is not there any more, or is not a regular one, is kept as an empty one.
// Limit: there are too many, or one is larger than 64 MiB and no output.
func (c *Client) SaveFiles(w io.Writer, files []CarriedFile) error {
	const op = "save"
	if len(files) > maxCarried {
		return &Error{Code: Limit, Op: op, Err: fmt.Errorf("%d open files below the control directory", len(files))}
	}
	tw := tar.NewWriter(w)
	for _, f := range files {
		if err := c.saveFile(op, tw, f); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return &Error{Code: Internal, Op: op, Err: err}
	}
	return nil
}

func (c *Client) saveFile(op string, tw *tar.Writer, f CarriedFile) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: f.Path, Mode: 0o600, Format: tar.FormatPAX}
	var content io.Reader = strings.NewReader("")
	offset := int64(0)
	fd, err := c.open(op, f.Path, unix.O_RDONLY, unix.S_IFREG)
	switch {
	case err == nil:
		file := os.NewFile(uintptr(fd), f.Path)
		defer file.Close()
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return &Error{Code: Internal, Op: op, Err: err}
		}
		const perm = 0o7777
		h.Mode, h.Uid, h.Gid = int64(st.Mode&perm), inner(st.Uid, c.uid), inner(st.Gid, c.gid)
		size := st.Size
		if f.Size >= 0 {
			size = min(size, f.Size)
		}
		if name := path.Base(f.Path); name == wire.FileStdout || name == wire.FileStderr {
			offset = max(0, size-maxCarriedTail)
		}
		if h.Size = size - offset; h.Size > maxCarriedFile {
			return &Error{Code: Limit, Op: op, Err: fmt.Errorf("%s has %d bytes", f.Path, h.Size)}
		}
		content = io.NewSectionReader(file, offset, h.Size)
	case !errors.Is(err, NotFound) && !errors.Is(err, Tampered):
		return err
	}
	h.PAXRecords = map[string]string{carriedOffset: strconv.FormatInt(offset, 10)}
	if err := tw.WriteHeader(h); err != nil {
		return &Error{Code: Internal, Op: op, Err: err}
	}
	n, err := io.Copy(tw, content)
	if err == nil && n < h.Size { // it was cut meanwhile
		_, err = io.CopyN(tw, zeros{}, h.Size-n)
	}
	if err != nil {
		return &Error{Code: Internal, Op: op, Err: err}
	}
	return nil
}

// inner gives a host id as it is inside, root's where it can't be.
func inner(id uint32, base int) int {
	const ids = 1 << 16
	if n := int(id) - base; n >= 0 && n < ids {
		return n
	}
	return 0
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// LoadFiles makes those files of a tar of SaveFiles that are not there.
func (c *Client) LoadFiles(r io.Reader) error {
	const op = "load"
	tr := tar.NewReader(r)
	for range maxCarried {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return &Error{Code: Protocol, Op: op, Err: err}
		}
		if err := c.loadFile(op, h, tr); err != nil {
			return err
		}
	}
	return &Error{Code: Limit, Op: op, Err: errors.New("too many files")}
}

func (c *Client) loadFile(op string, h *tar.Header, content io.Reader) error {
	offset, err := strconv.ParseInt(h.PAXRecords[carriedOffset], 10, 64)
	if err != nil || offset < 0 || !fsPath(h.Name) || h.Typeflag != tar.TypeReg {
		return &Error{Code: Protocol, Op: op, Err: fmt.Errorf("entry %q", h.Name)}
	}
	if err := c.mkdirs(op, path.Dir(h.Name)); err != nil {
		return err
	}
	fd, err := c.open(op, h.Name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, unix.S_IFREG)
	if errors.Is(err, Exists) {
		// It must be what a process can have open there.
		if fd, err = c.open(op, h.Name, unix.O_PATH, unix.S_IFREG); err == nil {
			unix.Close(fd)
		}
		return err
	}
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), h.Name)
	defer f.Close()
	if err := errors.Join(f.Chown(c.uid+h.Uid, c.gid+h.Gid), unix.Fchmod(fd, uint32(h.Mode)), f.Truncate(offset)); err != nil {
		return &Error{Code: Internal, Op: op, Err: err}
	}
	_, err = f.Seek(offset, io.SeekStart)
	if err == nil {
		_, err = io.Copy(f, content)
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return &Error{Code: Limit, Op: op, Err: err}
	}
	if err != nil {
		return &Error{Code: Internal, Op: op, Err: err}
	}
	return nil
}

// fsPath says whether a path is relative and has no "." or "..".
func fsPath(p string) bool {
	return p != "" && p != "." && path.Clean("/"+p) == "/"+p
}

// mkdirs makes the directories of a relative path that are not there.
func (c *Client) mkdirs(op, dir string) error {
	if dir == "." {
		return nil
	}
	fd, err := c.openDir(op, dir)
	if err == nil {
		unix.Close(fd)
		return nil
	}
	if !errors.Is(err, NotFound) {
		return err
	}
	if err := c.mkdirs(op, path.Dir(dir)); err != nil {
		return err
	}
	if path.Dir(dir) == "." {
		return c.withDir(func(root int) error { return c.mkdir(op, root, dir) })
	}
	parent, err := c.openDir(op, path.Dir(dir))
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	return c.mkdir(op, parent, path.Base(dir))
}

// Suspend makes the ends of these processes unseen until resume is called: who waits for
// one, or follows its output, goes on doing so. A process that is about to be restored
// has to be ended first.
func (c *Client) Suspend(ids []string) (resume func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		c.suspended[id]++
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, id := range ids {
			if c.suspended[id]--; c.suspended[id] <= 0 {
				delete(c.suspended, id)
			}
		}
	}
}

func (c *Client) isSuspended(id string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.suspended[id] > 0
}

// Revive removes what says that these processes have ended, for they are about to be
// restored. Whose files are gone is left alone.
func (c *Client) Revive(ids []string) error {
	const op = "revive"
	for _, id := range ids {
		if err := checkID(op, id); err != nil {
			return err
		}
		dir, err := c.openDir(op, wire.DirProcess+"/"+id)
		if errors.Is(err, NotFound) {
			continue
		}
		if err != nil {
			return err
		}
		err = unix.Unlinkat(dir, wire.FileStatus, 0)
		unix.Close(dir)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return &Error{Code: Tampered, Op: op, Err: fmt.Errorf("status of %s: %w", id, err)}
		}
	}
	return nil
}
