package overlay

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// file is copy for regular files.
//
// In a live pass the order matters: first it is looked at (st), then made
// sure that nobody has it open for writing, then copied. Who changes it later
// must open it first, so that its change time becomes another one: with a
// write, with the first store to each page of a mapping, with a truncation.
func (c *Capture) file(f *frame, n *node, was *unix.Stat_t, indexed, shared bool) error {
	in, st, err := openRegular(int(f.src.Fd()), n.name)
	if err != nil {
		return err
	}
	defer in.Close()
	if seen := seenAs(was, true); c.live && !seen.is(&st) {
		return nil
	}
	var settled bool
	if c.live {
		settled = c.tracked && noWriter(in)
		if !settled {
			return nil
		}
	} else {
		settled = c.tracked && settledBefore(&st, c.limit) && noHiddenWriter(in)
	}
	if err := c.at("capture: opened ", n.name); err != nil {
		return err
	}
	same := false
	if indexed {
		if same, err = sameAsBefore(in, &st, f.previous(), n.name); err != nil {
			return err
		}
	}
	makeAt := func(dir *os.File, name string) error {
		if same {
			return c.fromPrevious(f.previous(), n.name, dir, name)
		}
		b, err := c.copier.open(in, dir, name, &st)
		c.stats.BytesCopied += b
		return err
	}
	seen := seenAs(&st, settled)
	switch {
	case shared:
		n.same, n.seen = same, seen
		err = c.share(f, n, func(aside string) error { return makeAt(c.aside, aside) })
	case same:
	default:
		var out *os.File
		if out, err = f.stage(); err != nil {
			return err
		}
		n.staged = true
		err = makeAt(out, n.name)
	}
	if err != nil {
		return err
	}
	n.seen, n.same = seen, same
	return c.at("capture: copied ", n.name)
}

// at is a step that tests make something happen at.
func (c *Capture) at(step, name string) error {
	if c.pool.fail == nil {
		return nil
	}
	return c.pool.reached(step + name)
}

// sameAsBefore compares an open file with the previous capture's.
func sameAsBefore(in *os.File, st *unix.Stat_t, prev *os.File, name string) (bool, error) {
	if prev == nil {
		return false, nil
	}
	was, pst, err := openRegular(int(prev.Fd()), name)
	if err != nil {
		return false, nil // one that cannot be looked at counts as changed
	}
	defer was.Close()
	if pst.Mtim != st.Mtim || pst.Size != st.Size || pst.Mode != st.Mode || pst.Uid != st.Uid || pst.Gid != st.Gid {
		return false, nil
	}
	x, err := readXattrs(int(in.Fd()))
	if err != nil {
		return false, err
	}
	y, err := readXattrs(int(was.Fd()))
	if err != nil {
		return false, err
	}
	if !equalXattrs(visible(x, true), visible(y, true)) {
		return false, nil
	}
	if st.Size == 0 {
		return true, nil
	}
	// As far as it was then: it may grow meanwhile.
	return sameBytes(io.NewSectionReader(in, 0, st.Size), io.NewSectionReader(was, 0, st.Size))
}
