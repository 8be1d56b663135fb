package files

import (
	"context"
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// MkdirOptions says how [Root.Mkdir] makes a directory.
type MkdirOptions struct {
	Mode     *uint32 // 0 to 07777; default 0755
	UID, GID *uint32 // inside; default 0
	// Parents makes missing parents, 0755 with the same owner, and takes a
	// directory that exists, unchanged, for success.
	Parents bool
}

// Mkdir makes the directory path. Errors: ErrNotFound (no such parent), ErrExists,
// ErrNotDir, ErrNoSpace, ErrReadOnly, ErrOutside, ErrInvalid.
func (r *Root) Mkdir(ctx context.Context, path string, o MkdirOptions) (Info, error) {
	var info Info
	err := errors.Join(ctx.Err(), checkMode(o.Mode), checkPath(path))
	if err == nil {
		err = r.change(value(o.UID, 0), value(o.GID, 0), func(a *actor) error {
			mode := value(o.Mode, 0o755)
			if o.Parents {
				return a.mkdirAll(path, mode)
			}
			p, err := r.locate(trimSlashes(path), false)
			if err != nil {
				return err
			}
			defer p.close()
			return a.mkdir(p.dir, p.name, mode)
		})
	}
	if err == nil {
		info, err = r.stat(path, true)
	}
	return info, fail("mkdir", path, err)
}

// mkdir makes one directory. mkdirat leaves out the set-id bits; they are set on
// what has been made.
func (a *actor) mkdir(dir fd, name string, mode uint32) error {
	if len(name) > nameMax {
		return because(ErrBadPath, "name of %d bytes, at most %d", len(name), nameMax)
	}
	if err := unix.Mkdirat(int(dir), name, mode&0o1777); err != nil {
		return err
	}
	if mode&^0o1777 == 0 {
		return nil
	}
	f, err := child(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer f.close()
	return unix.Fchmod(int(f), mode)
}

// mkdirAll makes path and its missing parents. Symlinks on the way are followed
// inside the root.
func (a *actor) mkdirAll(path string, mode uint32) error {
	path = trimSlashes(path)
	f, err := a.r.openDir(path)
	if err == nil || !errors.Is(err, unix.ENOENT) {
		f.close()
		return err
	}
	dir, err := a.r.openDir("/")
	if err != nil {
		return err
	}
	defer func() { dir.close() }()
	for end := 0; end < len(path); {
		start := end
		for start < len(path) && path[start] == '/' {
			start++
		}
		end = len(path)
		if i := strings.IndexByte(path[start:], '/'); i >= 0 {
			end = start + i
		}
		next, err := a.r.openDir(path[:end])
		if errors.Is(err, unix.ENOENT) {
			m := uint32(0o755)
			if end == len(path) {
				m = mode
			}
			if err := a.mkdir(dir, path[start:end], m); err != nil && !errors.Is(err, unix.EEXIST) {
				return err
			}
			next, err = a.r.openDir(path[:end])
		}
		if err != nil {
			return err
		}
		dir.close()
		dir = next
	}
	return nil
}
