package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Squash makes the new layer dst out of consecutive layers of a stack, top
// first. In their place, on the layers below, it shows the same. Files are hard
// links to those of the layers, so no data is copied; what the layers hide of
// each other is left out.
//
// Whiteouts that hide nothing of what is below, or of the skeleton, are left out
// too. That is not only tidy: overlayfs lists a directory that only one layer
// has as it is, whiteouts included. So dst must stand on these same layers
// wherever it is used.
func (p *Pool) Squash(ctx context.Context, dst string, layers, below []string) error {
	if len(layers) == 0 {
		return errors.New("overlay: squash of no layers")
	}
	m, err := p.openMerged(layers)
	if err != nil {
		return err
	}
	defer m.close()
	return p.stage(dst, func(dir string) error {
		out, err := openDir(unix.AT_FDCWD, filepath.Join(dir, filesDir))
		if err != nil {
			return err
		}
		defer out.Close()
		s := &squasher{
			ctx: ctx, copier: copier{reflink: p.features.Reflink}, root: out,
			copied: map[fileID]string{},
			exists: func(path string) (bool, error) { return p.exists(below, path) },
		}
		if err := s.dir(m, out, ""); err != nil {
			return fmt.Errorf("overlay: squash %s: %w", dst, err)
		}
		var st unix.Stat_t
		top := m.parts[0].dir
		if err := unix.Fstat(int(top.Fd()), &st); err != nil {
			return err
		}
		return copyMetadata(top, ".", out, ".", &st)
	})
}

// exists says whether a path is in a stack or in the skeleton below it.
func (p *Pool) exists(layers []string, path string) (bool, error) {
	if len(layers) > 0 {
		found, err := p.Lookup(layers, path)
		if err != nil || found.Exists() {
			return found.Exists(), err
		}
	}
	_, err := os.Lstat(filepath.Join(p.Skeleton(), path))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	return err == nil, err
}

type squasher struct {
	ctx    context.Context
	copier copier
	root   *os.File
	exists func(path string) (bool, error) // below
	copied map[fileID]string               // files that could not be linked any more
}

func (s *squasher) dir(m *mergedDir, dst *os.File, prefix string) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	all, err := names(m.parts)
	if err != nil {
		return err
	}
	for _, name := range all {
		path := prefix + name
		e, whiteout, err := m.lookup(name)
		if err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
		switch {
		case e != nil && isDir(&e.st):
			err = s.subdir(e, dst, name, path)
		case e != nil:
			err = s.link(e, dst, name, path)
		case whiteout && !m.cut:
			err = s.whiteout(dst, name, path)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
	}
	return nil
}

// whiteout hides what is below at path, if anything is.
func (s *squasher) whiteout(dst *os.File, name, path string) error {
	hides, err := s.exists(path)
	if err != nil || !hides {
		return err
	}
	return unix.Mknodat(int(dst.Fd()), name, unix.S_IFCHR, 0)
}

func (s *squasher) subdir(e *mergedEntry, dst *os.File, name, path string) error {
	src, err := e.open(name)
	if err != nil {
		return err
	}
	defer src.close()
	if err := unix.Mkdirat(int(dst.Fd()), name, 0o700); err != nil {
		return err
	}
	d, err := openDir(int(dst.Fd()), name)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := s.dir(src, d, path+"/"); err != nil {
		return err
	}
	if err := copyMetadata(e.part.dir, name, dst, name, &e.st); err != nil {
		return err
	}
	// The top layer's own marker came with its metadata; that of a lower
	// one, or what else ended the merge, hides what is below the squash.
	if e.cut {
		return unix.Fsetxattr(int(d.Fd()), opaqueXattr, []byte("y"), 0)
	}
	return nil
}

func (s *squasher) link(e *mergedEntry, dst *os.File, name, path string) error {
	if at, ok := s.copied[idOf(&e.st)]; ok {
		return unix.Linkat(int(s.root.Fd()), at, int(dst.Fd()), name, 0)
	}
	err := unix.Linkat(int(e.part.dir.Fd()), name, int(dst.Fd()), name, 0)
	if !errors.Is(err, unix.EMLINK) && !errors.Is(err, unix.EXDEV) {
		return err
	}
	if _, err := s.copier.entry(e.part.dir, name, dst, name, &e.st); err != nil {
		return err
	}
	s.copied[idOf(&e.st)] = path
	return nil
}
