package files

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// removePasses is how often a directory is read again because entries appeared
// in it while it was emptied.
const removePasses = 4

// Remove deletes what path names; a symlink itself, not what it points to. With
// recursive, a directory goes with everything below it; what could be deleted
// before an error stays deleted.
// Errors: ErrNotFound, ErrNotEmpty, ErrBadPath ("/" and names like ".."),
// ErrOutside where something is mounted, ErrTooLarge beyond Limits.Depth.
func (r *Root) Remove(ctx context.Context, path string, recursive bool) error {
	err := errors.Join(ctx.Err(), checkPath(path))
	if err == nil {
		err = r.change(0, 0, func(*actor) error {
			p, err := r.locate(trimSlashes(path), false)
			if err != nil {
				return err
			}
			defer p.close()
			if !p.exists() {
				return unix.ENOENT
			}
			return r.remove(ctx, p, recursive, r.limits.Depth)
		})
	}
	return fail("remove", path, err)
}

func (r *Root) remove(ctx context.Context, p *place, recursive bool, depth int) error {
	if p.kind() != TypeDir {
		return unix.Unlinkat(int(p.dir), p.name, 0)
	}
	if recursive {
		if depth == 0 {
			return because(ErrTooLarge, "more than %d directories below each other", r.limits.Depth)
		}
		if err := r.empty(ctx, p, depth); err != nil {
			return err
		}
	}
	return unix.Unlinkat(int(p.dir), p.name, unix.AT_REMOVEDIR)
}

// empty removes all entries of the directory p.
func (r *Root) empty(ctx context.Context, p *place, depth int) error {
	f, err := openat2(int(p.node), ".", unix.O_RDONLY|unix.O_DIRECTORY, beneath)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(f), p.name)
	defer func() { _ = dir.Close() }()
	for range removePasses {
		found := false
		for {
			names, err := dir.Readdirnames(dirChunk)
			for _, name := range names {
				if err := ctx.Err(); err != nil {
					return err
				}
				found = true
				if err := r.removeName(ctx, f, name, depth-1); err != nil {
					return err
				}
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
		}
		if !found {
			return nil
		}
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	return nil
}

// removeName removes one entry of dir, with all below it. An entry that is gone
// already is no error.
func (r *Root) removeName(ctx context.Context, dir fd, name string, depth int) error {
	p := &place{dir: dir, name: name, node: -1}
	defer func() { p.node.close() }()
	err := p.look()
	if err == nil && p.exists() {
		err = r.remove(ctx, p, true, depth)
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fail("remove", name, err)
}
