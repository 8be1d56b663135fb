package overlay

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// complete makes the staged layer whole, from the previous capture, and fills
// its index.
func (c *Capture) complete(ctx context.Context, next index) error {
	c.ctx = ctx
	next.entries["."] = c.root.seen
	return c.completeDirectory(c.top(), next)
}

func (c *Capture) completeDirectory(f *frame, next index) error {
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	out, err := f.stage()
	if err != nil {
		return err
	}
	for _, k := range f.n.dir.kids {
		next.entries[f.path+k.name] = k.seen
		switch {
		case k.dir != nil:
			sub := f.below(k, nil)
			err = c.completeDirectory(sub, next)
			sub.close()
		case !k.staged:
			err = c.fromPrevious(f.previous(), k.name, out, k.name)
		}
		if err != nil {
			return err
		}
	}
	return c.directoryMetadata(f, out)
}

// fromPrevious links a file of the previous capture, or, if that cannot be
// and for what is no file, copies it.
func (c *Capture) fromPrevious(prev *os.File, name string, dir *os.File, as string) error {
	if prev == nil {
		return &os.PathError{Op: "capture", Path: name, Err: errors.New("the previous capture is gone")}
	}
	st, err := lstatAt(int(prev.Fd()), name)
	if err != nil {
		return err
	}
	if isFile(&st) {
		err := unix.Linkat(int(prev.Fd()), name, int(dir.Fd()), as, 0)
		if err == nil {
			c.stats.Linked++
			return nil
		}
		if !errors.Is(err, unix.EMLINK) && !errors.Is(err, unix.EXDEV) {
			return &os.PathError{Op: "link", Path: name, Err: err}
		}
	}
	n, err := c.copier.entry(prev, name, dir, as, &st)
	c.stats.BytesCopied += n
	return err
}

// directoryMetadata comes last, since filling a directory changes its times
// and what it has could be inherited.
func (c *Capture) directoryMetadata(f *frame, out *os.File) error {
	d := f.n.dir
	if err := unix.Fchown(int(out.Fd()), int(d.st.Uid), int(d.st.Gid)); err != nil {
		return &os.PathError{Op: "chown", Path: f.n.name, Err: err}
	}
	if err := unix.Fchmod(int(out.Fd()), d.st.Mode&0o7777); err != nil {
		return &os.PathError{Op: "chmod", Path: f.n.name, Err: err}
	}
	xs := d.xattrs
	var err error
	switch {
	case f.n.same:
		if f.previous() == nil {
			return &os.PathError{Op: "capture", Path: f.n.name, Err: errors.New("the previous capture is gone")}
		}
		xs, err = readXattrsAt(f.previous(), ".")
	case d.aside != "":
		xs, err = readXattrsAt(c.aside, d.aside)
	}
	if err != nil {
		return &os.PathError{Op: "read extended attributes", Path: f.n.name, Err: err}
	}
	if err := setXattrsAt(out, ".", visible(xs, true)); err != nil {
		return err
	}
	return setTimes(int(out.Fd()), "", d.st.Atim, d.st.Mtim)
}
