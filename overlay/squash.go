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
// first. In their place it shows the same, whatever is below them. Files are
// hard links to those of the layers, so no data is copied; what the layers
// hide of each other is left out.
//
// bottom says that nothing but the skeleton is below them, in every stack in
// which dst is to take their place: then markers that hide nothing are left
// out too.
func (p *Pool) Squash(ctx context.Context, dst string, layers []string, bottom bool) error {
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
		}
		if bottom {
			if s.skeleton, err = openDir(unix.AT_FDCWD, p.Skeleton()); err != nil {
				return err
			}
			defer s.skeleton.Close()
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

type squasher struct {
	ctx      context.Context
	copier   copier
	root     *os.File
	skeleton *os.File          // nil unless it is all that is below
	copied   map[fileID]string // files that could not be linked any more
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
		case whiteout && s.hides(m, path):
			err = unix.Mknodat(int(dst.Fd()), name, unix.S_IFCHR, 0)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
	}
	return nil
}

// hides says whether a whiteout in m can have something to hide.
func (s *squasher) hides(m *mergedDir, path string) bool {
	if m.cut {
		return false
	}
	if s.skeleton == nil {
		return true
	}
	_, err := lstatAt(int(s.skeleton.Fd()), path)
	return err == nil
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
