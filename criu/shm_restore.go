package criu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// clearShm removes everything in a directory. What is too deep is moved to the top first,
// so that the number of open descriptors is bounded.
func clearShm(ctx context.Context, top *os.File) error {
	c := &shmClearer{ctx: ctx, top: int(top.Fd())}
	for {
		more, err := c.below(c.top, 0)
		if err != nil || !more {
			return err
		}
	}
}

type shmClearer struct {
	ctx   context.Context
	top   int
	moved int
}

// below removes what is in a directory; more says that something was moved to the top.
func (c *shmClearer) below(dir, depth int) (more bool, err error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	d := os.NewFile(uintptr(fd), "shm")
	defer d.Close()
	for {
		if err := context.Cause(c.ctx); err != nil {
			return more, err
		}
		names, err := d.Readdirnames(256)
		for _, name := range names {
			again, err := c.remove(fd, name, depth)
			if err != nil {
				return more, fmt.Errorf("remove %q: %w", name, err)
			}
			more = more || again
		}
		if errors.Is(err, io.EOF) {
			return more, nil
		}
		if err != nil {
			return more, err
		}
	}
}

func (c *shmClearer) remove(dir int, name string, depth int) (more bool, err error) {
	err = unix.Unlinkat(dir, name, 0)
	if !errors.Is(err, unix.EISDIR) {
		return false, err
	}
	if depth >= mostShmDepth {
		for {
			c.moved++
			err := unix.Renameat2(dir, name, c.top, "cleared-"+strconv.Itoa(c.moved), unix.RENAME_NOREPLACE)
			if !errors.Is(err, unix.EEXIST) {
				return true, err
			}
		}
	}
	sub, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_BENEATH,
	})
	if err != nil {
		return false, err
	}
	more, err = c.below(sub, depth+1)
	unix.Close(sub)
	if err != nil {
		return more, err
	}
	return more, unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

// shmRestorer makes what the index lists. Verified as it is, it is still read as if it
// could lead outside: all paths are resolved below the directory, without symbolic links.
type shmRestorer struct {
	ctx    context.Context
	owners owners
	images *os.File
	dir    *os.File
	data   *os.File
}

func (r *shmRestorer) open(name string) (*os.File, error) {
	fd, err := unix.Openat(int(r.images.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func damaged(err error) error {
	return &Error{Code: CodeImages, Resource: "image " + shmIndex, Message: "it is damaged", Err: err}
}

func (r *shmRestorer) restore() error {
	index, err := r.open(shmIndex)
	if errors.Is(err, unix.ENOENT) {
		return r.usual()
	}
	if err != nil {
		return err
	}
	defer index.Close()
	if r.data, err = r.open(shmData); err != nil {
		return damaged(err)
	}
	defer r.data.Close()
	d := json.NewDecoder(index)
	// Directories get their times last: what is made in them changes these.
	var dirs []shmEntry
	for {
		var e shmEntry
		err := d.Decode(&e)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return damaged(err)
		}
		if len(dirs) > mostShmEntries {
			return damaged(errors.New("too many directories"))
		}
		if err := context.Cause(r.ctx); err != nil {
			return err
		}
		if err := r.make(e); err != nil {
			return fmt.Errorf("%q: %w", e.Name, err)
		}
		if e.Mode&unix.S_IFMT == unix.S_IFDIR {
			dirs = append(dirs, e)
		}
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		f, err := r.find(string(dirs[i].Name))
		if err != nil {
			return err
		}
		err = setTime(int(f.Fd()), "", dirs[i].MTime)
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// usual gives the directory itself what it has at first.
func (r *shmRestorer) usual() error {
	fd := int(r.dir.Fd())
	return errors.Join(unix.Fchown(fd, int(r.owners.uid.base), int(r.owners.gid.base)), unix.Fchmod(fd, unix.S_ISVTX|0o777))
}

// find opens a directory that was made, by its path.
func (r *shmRestorer) find(name string) (*os.File, error) {
	fd, err := unix.Openat2(int(r.dir.Fd()), name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// make makes one file.
func (r *shmRestorer) make(e shmEntry) error {
	name := string(e.Name)
	if bytes.IndexByte(e.Name, 0) >= 0 || name != path.Clean(name) || name == ".." {
		return damaged(errors.New("odd name"))
	}
	parent, err := r.find(path.Dir(name))
	if err != nil {
		return err
	}
	defer parent.Close()
	at, base, mode := int(parent.Fd()), path.Base(name), e.Mode&^uint32(unix.S_IFMT)
	if e.Link != nil {
		to, err := r.find(path.Dir(string(e.Link)))
		if err != nil {
			return err
		}
		defer to.Close()
		return unix.Linkat(int(to.Fd()), path.Base(string(e.Link)), at, base, 0)
	}
	uid, err := r.owners.uid.outside(e.UID)
	if err != nil {
		return err
	}
	gid, err := r.owners.gid.outside(e.GID)
	if err != nil {
		return err
	}
	fd := -1
	switch kind := e.Mode & unix.S_IFMT; kind {
	case unix.S_IFREG:
		if fd, err = unix.Openat(at, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600); err != nil {
			return err
		}
	case unix.S_IFDIR:
		if name != "." {
			if err := unix.Mkdirat(at, base, 0o700); err != nil {
				return err
			}
		}
		if fd, err = unix.Openat(at, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
	case unix.S_IFLNK:
		err = unix.Symlinkat(string(e.Target), at, base)
	case unix.S_IFIFO, unix.S_IFSOCK:
		err = unix.Mknodat(at, base, kind|0o600, 0)
	default:
		err = damaged(fmt.Errorf("mode %o", e.Mode))
	}
	if err != nil {
		return err
	}
	if fd < 0 {
		err := unix.Fchownat(at, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && e.Mode&unix.S_IFMT != unix.S_IFLNK {
			err = unix.Fchmodat(at, base, mode, 0) // it was just made: no symbolic link
		}
		return errors.Join(err, setTime(at, base, e.MTime))
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if err := r.fill(f, e); err != nil {
		return err
	}
	// The owner first, as a change of owner takes the set-id bits away.
	if err := errors.Join(unix.Fchown(fd, uid, gid), unix.Fchmod(fd, mode)); err != nil {
		return err
	}
	return setTime(fd, "", e.MTime)
}

func (r *shmRestorer) fill(f *os.File, e shmEntry) error {
	for name, value := range e.Attrs {
		if err := unix.Fsetxattr(int(f.Fd()), name, value, 0); err != nil {
			return fmt.Errorf("set attribute %s: %w", name, err)
		}
	}
	if e.Size == 0 {
		return nil
	}
	if err := f.Truncate(e.Size); err != nil {
		return err
	}
	return r.pour(f, e.Data, e.Size)
}

// pour puts the next content of the data into a file of that size.
func (r *shmRestorer) pour(f *os.File, parts []extent, size int64) error {
	for _, x := range parts {
		if x.At < 0 || x.Len < 0 || x.At > size || x.Len > size-x.At {
			return damaged(errors.New("content outside of the file"))
		}
		n, err := io.CopyBuffer(io.NewOffsetWriter(f, x.At), struct{ io.Reader }{io.LimitReader(r.data, x.Len)}, make([]byte, 1<<20))
		if err != nil {
			return err
		}
		if n != x.Len {
			return damaged(io.ErrUnexpectedEOF)
		}
		if err := context.Cause(r.ctx); err != nil {
			return err
		}
	}
	return nil
}

// setTime sets the time of the last change of content.
func setTime(at int, name string, ns int64) error {
	flags := unix.AT_SYMLINK_NOFOLLOW
	if name == "" {
		flags = unix.AT_EMPTY_PATH
	}
	return unix.UtimesNanoAt(at, name, []unix.Timespec{unix.NsecToTimespec(ns), unix.NsecToTimespec(ns)}, flags)
}
