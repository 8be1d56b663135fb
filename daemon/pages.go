package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cairn/criu"
	"cairn/criu/pages"
	"cairn/sandbox"
)

func (d dumps) Compact(ctx context.Context, layer, base, dst string) (c sandbox.Compacted, _ error) {
	dirs, shut, err := d.openAll(layer, base, dst)
	if err != nil {
		return c, err
	}
	defer shut()
	s, err := pages.Compact(ctx, dirs[0], dirs[1], dirs[2])
	if err != nil {
		return c, pagesError(err)
	}
	c.Based = s.Based
	if c.Digest, _, err = criu.Digest(dirs[2]); err != nil {
		return c, criuError(err)
	}
	c.Bytes, err = ownBytes(dirs[2])
	d.log.Debug("pages compared", "layer", dst, "pages", s.Pages, "zero", s.Zero, "shared", s.Shared, "own", s.Own, "written", s.Written)
	return c, err
}

// openAll opens directories of images; of "" it gives nil.
func (d dumps) openAll(layers ...string) (dirs []*os.File, shut func(), err error) {
	shut = func() {
		for _, f := range dirs {
			if f != nil {
				f.Close()
			}
		}
	}
	for _, id := range layers {
		var f *os.File
		if id != "" {
			if f, err = d.open(id); err != nil {
				shut()
				return nil, nil, err
			}
		}
		dirs = append(dirs, f)
	}
	return dirs, shut, nil
}

func (d dumps) Compress(ctx context.Context, layer, base, dst string) error {
	dirs, shut, err := d.openAll(layer, base, dst)
	if err != nil {
		return err
	}
	defer shut()
	return pagesError(pages.Compress(ctx, dirs[0], dirs[1], dirs[2]))
}

func (d dumps) Expand(ctx context.Context, layer, dst string) error {
	dirs, shut, err := d.openAll(layer, dst)
	if err != nil {
		return err
	}
	defer shut()
	return pagesError(pages.Expand(ctx, dirs[0], dirs[1]))
}

func (d dumps) OwnBytes(_ context.Context, layer string) (int64, error) {
	dirs, shut, err := d.openAll(layer)
	if err != nil {
		return 0, err
	}
	defer shut()
	return ownBytes(dirs[0])
}

// ownBytes adds up the files of a directory of images, without those below parent: these are
// the base's, or have another name beside it.
func ownBytes(images *os.File) (bytes int64, err error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/self/fd/%d", images.Fd()))
	if err != nil {
		return 0, fmt.Errorf("read the directory of images: %w", err)
	}
	for _, e := range entries {
		var st unix.Stat_t
		if err := unix.Fstatat(int(images.Fd()), e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return 0, fmt.Errorf("look at image %s: %w", e.Name(), err)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			bytes += st.Size
		}
	}
	return bytes, nil
}

func (d dumps) Size(ctx context.Context, layer string) (own, shared int64, err error) {
	type file struct {
		links, known uint64
		bytes        int64
	}
	files := map[uint64]*file{}
	err = filepath.WalkDir(d.pool.LayerPath(layer), func(path string, e os.DirEntry, err error) error {
		if err = errors.Join(err, context.Cause(ctx)); err != nil || e.IsDir() {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return fmt.Errorf("look at image %s: %w", e.Name(), err)
		}
		f := files[st.Ino]
		if f == nil {
			f = &file{links: st.Nlink, bytes: st.Size}
			files[st.Ino] = f
		}
		f.known++
		return nil
	})
	if errors.Is(err, os.ErrNotExist) {
		err = sandbox.Wrap(err, sandbox.CodeCorrupt, "a layer is missing from the pool")
	}
	for _, f := range files {
		if f.known == f.links {
			own += f.bytes
		} else {
			shared += f.bytes
		}
	}
	return own, shared, err
}

// pagesError gives an error of pages the domain's code.
func pagesError(err error) error {
	var format *pages.FormatError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &format):
		return sandbox.Wrap(err, sandbox.CodeCorrupt, "the images of the processes have what is not known: %s", format.Error())
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return sandbox.Wrap(err, sandbox.CodeNoSpace, "no space is left for the memory of processes")
	}
	return err
}
