package overlay

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// visitor is called for the entries of one layer: a directory before what is
// in it, siblings sorted by the bytes of their names. dir is the entry's
// parent, open; path is relative to the layer's root, "." for the root
// itself, for which dir is the root and name is ".".
type visitor func(dir *os.File, name, path string, st *unix.Stat_t) error

// walk visits a directory and everything below it, without following
// symbolic links.
func walk(ctx context.Context, root *os.File, visit visitor) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return &os.PathError{Op: "stat", Path: root.Name(), Err: err}
	}
	if err := visit(root, ".", ".", &st); err != nil {
		return err
	}
	return walkDir(ctx, root, "", visit)
}

func walkDir(ctx context.Context, dir *os.File, prefix string, visit visitor) error {
	names, err := readNames(dir)
	if err != nil {
		return fmt.Errorf("list %q: %w", prefix, err)
	}
	for _, name := range names {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		st, err := lstatAt(int(dir.Fd()), name)
		if err != nil {
			return err
		}
		path := prefix + name
		if err := visit(dir, name, path, &st); err != nil {
			return err
		}
		if !isDir(&st) {
			continue
		}
		sub, err := openDir(int(dir.Fd()), name)
		if err != nil {
			return err
		}
		err = walkDir(ctx, sub, path+"/", visit)
		sub.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// fileID is what makes two directory entries the same file.
type fileID struct{ dev, ino uint64 }

func idOf(st *unix.Stat_t) fileID { return fileID{st.Dev, st.Ino} }

// openLayer opens a layer's root directory.
func (p *Pool) openLayer(id string) (*os.File, error) {
	if err := p.check(id); err != nil {
		return nil, err
	}
	d, err := openDir(unix.AT_FDCWD, p.LayerPath(id))
	if err != nil {
		return nil, fmt.Errorf("overlay: layer %s: %w", id, err)
	}
	return d, nil
}

// Usage is what a layer takes on disk.
type Usage struct {
	Bytes int64 // allocated; a file linked from several layers counts in each
	Files int64 // entries, the root included
}

// Usage adds up what a layer takes.
func (p *Pool) Usage(ctx context.Context, id string) (Usage, error) {
	var u Usage
	d, err := p.openLayer(id)
	if err != nil {
		return u, err
	}
	defer d.Close()
	seen := map[fileID]bool{}
	err = walk(ctx, d, func(_ *os.File, _, _ string, st *unix.Stat_t) error {
		u.Files++
		if st.Nlink > 1 && !isDir(st) {
			if seen[idOf(st)] {
				return nil
			}
			seen[idOf(st)] = true
		}
		u.Bytes += st.Blocks * 512
		return nil
	})
	if err != nil {
		return u, fmt.Errorf("overlay: usage of %s: %w", id, err)
	}
	return u, nil
}
