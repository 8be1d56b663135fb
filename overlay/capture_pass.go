package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// liveDepth and liveNames bound what a sandbox that rearranges its
	// directories can make a pass do while it runs. The rest is left to Finish.
	liveDepth = 256
	liveNames = 1 << 20
)

// pass goes through the upper and copies what the capture has no copy of that
// still holds. A live pass copies only what had settled before it began, so
// that it comes to an end whatever is done to the upper meanwhile; it leaves
// out what it cannot make sense of. The other kind does all.
func (c *Capture) pass(ctx context.Context, live bool) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("overlay: capture %s: %w", c.upper, err)
		}
	}()
	c.ctx, c.live, c.changed, c.stats.Files = ctx, live, 0, 0
	c.seen = map[uint64]bool{}
	if err := c.mindClock(); err != nil {
		return err
	}
	if c.limit, err = settledLimit(); err != nil {
		return err
	}
	return c.directory(c.top())
}

// mindClock makes sure that a later change had another change time.
func (c *Capture) mindClock() error {
	back, err := c.step.back()
	if err != nil || !back {
		return err
	}
	c.pool.log.Info("overlay: the clock was set back: a capture starts over", "upper", c.upper)
	c.distrust(c.root)
	c.shared, c.old = map[uint64]*inode{}, index{}
	c.step, err = newClockStep()
	return err
}

// distrust has everything looked at again.
func (c *Capture) distrust(n *node) {
	n.seen.settled, n.white = false, false
	if n.dir != nil {
		for _, k := range n.dir.kids {
			c.distrust(k)
		}
	}
}

// directory brings the copy of a directory up to date.
func (c *Capture) directory(f *frame) error {
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.src.Fd()), &st); err != nil {
		return &os.PathError{Op: "stat", Path: f.n.name, Err: err}
	}
	c.stats.Files++
	n := f.n
	known := n.seen.settled && n.seen.is(&st)
	if !known {
		if err := c.lookAtDirectory(f, &st); err != nil {
			return err
		}
	}
	n.dir.st = st
	if !n.same {
		c.changed++
	}
	if !known {
		if err := c.list(f); err != nil {
			n.seen = indexEntry{}
			return err
		}
	}
	for _, k := range n.dir.kids {
		if err := c.entry(f, k); err != nil {
			if c.ctx.Err() != nil {
				return err
			}
			return fmt.Errorf("%q: %w", k.name, err)
		}
	}
	return nil
}

// lookAtDirectory takes note of a directory's own metadata.
func (c *Capture) lookAtDirectory(f *frame, st *unix.Stat_t) error {
	n := f.n
	n.seen, n.same = indexEntry{}, false
	settled := settledBefore(st, c.limit)
	if c.live && !settled {
		return nil
	}
	path := "."
	if f.up != nil {
		path = f.path[:len(f.path)-1]
	}
	e, ok := c.old.entries[path]
	switch {
	case !ok || e.ino != st.Ino || e.mode != st.Mode:
	case e.settled && e.is(st):
		n.same = true
	default:
		prev := f.previous()
		if prev == nil {
			break
		}
		var pst unix.Stat_t
		if err := unix.Fstat(int(prev.Fd()), &pst); err != nil {
			return err
		}
		if pst.Mtim == st.Mtim {
			d, err := compare(f.src, ".", st, prev, ".", &pst, true)
			if err != nil {
				return err
			}
			n.same = d == 0
		}
	}
	if !n.same {
		c.late()
		if err := c.keepXattrs(f); err != nil {
			return err
		}
	}
	n.seen = seenAs(st, settled)
	return nil
}

func (c *Capture) late() {
	if !c.live {
		c.stats.Late++
	}
}

func seenAs(st *unix.Stat_t, settled bool) indexEntry {
	return indexEntry{st.Ino, st.Ctim, st.Size, st.Mode, settled}
}

// list brings the list of what is in a directory up to date.
func (c *Capture) list(f *frame) error {
	if _, err := f.src.Seek(0, io.SeekStart); err != nil {
		return err
	}
	d := f.n.dir
	old := make(map[string]*node, len(d.kids))
	for _, k := range d.kids {
		old[k.name] = k
	}
	d.kids = d.kids[:0:0]
	for {
		names, err := f.src.Readdirnames(4096)
		for _, name := range names {
			k := old[name]
			if k == nil {
				k = &node{name: name}
			}
			delete(old, name)
			d.kids = append(d.kids, k)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if c.live && len(d.kids) >= liveNames {
			f.n.seen = indexEntry{} // to be listed again
			break
		}
	}
	for _, k := range old {
		if err := c.discard(f, k); err != nil {
			return err
		}
	}
	return nil
}

// entry brings the copy of what is in a directory up to date.
func (c *Capture) entry(f *frame, n *node) error {
	var st unix.Stat_t
	err := unix.Fstatat(int(f.src.Fd()), n.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		err = &os.PathError{Op: "lstat", Path: n.name, Err: err}
	} else if !isDir(&st) && c.holds(n, &st) {
		c.stats.Files++
		if !n.same {
			c.changed++
		}
		return nil
	} else if isDir(&st) {
		err = c.subdirectory(f, n, &st)
	} else {
		err = c.renew(f, n, &st)
	}
	if err != nil && c.live && !final(c.ctx, err) {
		// Something changes it right now, or Finish will say what is wrong.
		if n.dir != nil {
			return nil
		}
		return c.discard(f, n)
	}
	return err
}

// final says whether an error during a live pass ends the capture.
func final(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS)
}

// holds says whether the copy of what is no directory is still right.
func (c *Capture) holds(n *node, st *unix.Stat_t) bool {
	if n.white && isWhiteout(st) {
		// One is like another. Overlayfs makes them links of one inode, whose
		// change time changes with each.
		n.seen = seenAs(st, settledBefore(st, c.limit))
		return true
	}
	return n.seen.settled && n.seen.is(st) && (n.shared == nil || n.shared == c.shared[st.Ino])
}

func (c *Capture) subdirectory(f *frame, n *node, st *unix.Stat_t) error {
	src, err := openDir(int(f.src.Fd()), n.name)
	if err != nil {
		return err
	}
	sub := f.below(n, src)
	defer sub.close()
	if c.live {
		if ok, err := c.mayEnter(sub, st); err != nil || !ok {
			return err
		}
	}
	if n.dir == nil || n.dir.st.Ino != st.Ino {
		if err := c.discard(f, n); err != nil {
			return err
		}
		n.dir = &dirNode{}
	}
	return c.directory(sub)
}

// mayEnter says whether a live pass goes into a directory: not into one that
// was made since it began, not twice into the same, and not too deep.
func (c *Capture) mayEnter(f *frame, st *unix.Stat_t) (bool, error) {
	var sx unix.Statx_t
	if err := unix.Statx(int(f.src.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &sx); err != nil {
		return false, &os.PathError{Op: "statx", Path: f.n.name, Err: err}
	}
	if sx.Ino != st.Ino || f.depth > liveDepth || c.seen[sx.Ino] {
		return false, nil
	}
	c.seen[sx.Ino] = true
	born := unix.Timespec{Sec: sx.Btime.Sec, Nsec: int64(sx.Btime.Nsec)}
	return sx.Mask&unix.STATX_BTIME == 0 || born.Nano() < c.limit.Nano(), nil
}

// renew makes the copy of what is no directory anew.
func (c *Capture) renew(f *frame, n *node, st *unix.Stat_t) error {
	if c.live && !settledBefore(st, c.limit) && !isWhiteout(st) {
		return nil // it is not as seen, so that whatever copy there is, it doesn't hold
	}
	if err := c.discard(f, n); err != nil {
		return err
	}
	c.stats.Files++
	c.late()
	err := c.copy(f, n, st)
	if err == nil && !n.same {
		c.changed++
	}
	return err
}

// copy makes the copy of a node that has none.
func (c *Capture) copy(f *frame, n *node, st *unix.Stat_t) error {
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	path := f.path + n.name
	e, indexed := c.old.entries[path]
	indexed = indexed && e.ino == st.Ino && e.mode == st.Mode
	// Whiteouts share an inode because overlayfs saves some, not as links.
	shared := st.Nlink > 1 && !isWhiteout(st)
	if shared {
		if i := c.shared[st.Ino]; i != nil && i.seen.is(st) && (i.seen.settled || !c.live && i.late) {
			n.seen, n.same = i.seen, i.same && indexed
			return c.link(f, n, i)
		}
	}
	n.white = isWhiteout(st)
	if indexed && e.settled && e.is(st) && (c.tracked || !isFile(st)) && f.previous() != nil {
		// It was unchanged from the previous capture on.
		n.seen, n.same = seenAs(st, true), true
		if !shared {
			return nil
		}
		return c.share(f, n, func(aside string) error { return c.fromPrevious(f.previous(), n.name, c.aside, aside) })
	}
	if isFile(st) {
		return c.file(f, n, st, indexed, shared)
	}
	same := false
	if indexed && f.previous() != nil {
		pst, err := lstatAt(int(f.previous().Fd()), n.name)
		if err == nil && n.white {
			same = isWhiteout(&pst)
		} else if err == nil && pst.Mtim == st.Mtim {
			d, err := compare(f.src, n.name, st, f.previous(), n.name, &pst, true)
			if err != nil {
				return err
			}
			same = d == 0
		}
	}
	n.seen, n.same = seenAs(st, settledBefore(st, c.limit)), same
	copyTo := func(dir *os.File, name string) error {
		b, err := c.copier.entry(f.src, n.name, dir, name, st)
		c.stats.BytesCopied += b
		return err
	}
	switch {
	case shared:
		return c.share(f, n, func(aside string) error { return copyTo(c.aside, aside) })
	case same:
		return nil
	}
	out, err := f.stage()
	if err != nil {
		return err
	}
	n.staged = true
	return copyTo(out, n.name)
}

// share makes the copy of a file with several links, and the first of them.
func (c *Capture) share(f *frame, n *node, fill func(aside string) error) error {
	i := &inode{seen: n.seen, same: n.same, aside: c.setAside(), late: !c.live}
	if err := fill(i.aside); err != nil {
		return errors.Join(err, ignore(unix.Unlinkat(int(c.aside.Fd()), i.aside, 0), unix.ENOENT))
	}
	if old := c.shared[n.seen.ino]; old != nil {
		// What was linked to it goes when it is come by.
		if err := unix.Unlinkat(int(c.aside.Fd()), old.aside, 0); err != nil {
			return &os.PathError{Op: "unlink", Path: old.aside, Err: err}
		}
	}
	c.shared[n.seen.ino] = i
	return c.link(f, n, i)
}

func ignore(err, which error) error {
	if errors.Is(err, which) {
		return nil
	}
	return err
}

// link makes a node a link to the copy of a file with several.
func (c *Capture) link(f *frame, n *node, i *inode) error {
	out, err := f.stage()
	if err != nil {
		return err
	}
	if err := unix.Linkat(int(c.aside.Fd()), i.aside, int(out.Fd()), n.name, 0); err != nil {
		return &os.PathError{Op: "link", Path: n.name, Err: err}
	}
	n.staged, n.shared = true, i
	return nil
}
