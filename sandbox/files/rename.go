package files

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// Rename gives what from names the name to; symlinks are renamed, not followed.
// Without replace, ErrExists when to is taken. Errors as for Remove, and
// ErrUnsupported for a directory that comes from an image or a checkpoint: the
// layers' file system can't rename those.
func (r *Root) Rename(ctx context.Context, from, to string, replace bool) error {
	err := errors.Join(ctx.Err(), checkPath(from), checkPath(to))
	if err == nil {
		err = r.change(0, 0, func(*actor) error { return r.rename(from, to, replace) })
	}
	return fail("rename", from, err)
}

func (r *Root) rename(from, to string, replace bool) error {
	src, err := r.locate(trimSlashes(from), false)
	if err != nil {
		return err
	}
	defer src.close()
	if !src.exists() {
		return unix.ENOENT
	}
	dst, err := r.locate(trimSlashes(to), false)
	if err != nil {
		return fail("rename to", to, err)
	}
	defer dst.close()
	err = unix.Renameat2(int(src.dir), src.name, int(dst.dir), dst.name, noReplace(!replace))
	switch {
	case errors.Is(err, unix.EXDEV):
		return because(ErrUnsupported, "a directory of a lower layer can't be renamed (%w)", err)
	case errors.Is(err, unix.EINVAL):
		return because(ErrInvalid, "a directory can't move below itself (%w)", err)
	}
	return err
}
