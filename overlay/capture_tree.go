package overlay

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// node is an entry of the upper as a capture last saw it.
//
// If seen is set, the capture has a copy that was made after looking at the
// entry: in the stage, or, if staged is false, in the previous capture, to be
// taken from there by Commit. If seen is settled as well, the copy is what the
// entry is for as long as the entry is as seen.
type node struct {
	name   string
	seen   indexEntry
	staged bool     // there is something of that name in the stage
	same   bool     // as in the previous capture
	white  bool     // a whiteout
	shared *inode   // of a file with several links
	dir    *dirNode // of a directory
}

type dirNode struct {
	st     unix.Stat_t // owner, mode and times
	kids   []*node
	xattrs []xattr // if not the same as in the previous capture, and small
	aside  string  // else the directory kept aside that has them
}

// inode is a file with several links. Its copy is kept aside until Commit;
// what is in the stage are links to it.
type inode struct {
	seen  indexEntry
	same  bool
	late  bool // made while the processes stand still: right whether settled or not
	aside string
}

// frame is a directory that a pass or Commit is at.
type frame struct {
	up     *frame
	n      *node
	path   string   // of what is in it: "", or ending in "/"
	src    *os.File // in the upper
	out    *os.File // in the stage, nil until needed
	prev   *os.File // in the previous capture, nil until needed
	noPrev bool     // it has no such directory
	depth  int
}

func (c *Capture) top() *frame {
	return &frame{n: c.root, src: c.src, out: c.out, prev: c.prev, noPrev: c.prev == nil}
}

func (f *frame) below(n *node, src *os.File) *frame {
	return &frame{up: f, n: n, path: f.path + n.name + "/", src: src, noPrev: f.noPrev, depth: f.depth + 1}
}

// close closes what belongs to the frame alone.
func (f *frame) close() {
	if f.up == nil {
		return
	}
	for _, d := range []*os.File{f.src, f.out, f.prev} {
		if d != nil {
			d.Close()
		}
	}
}

// stage is the directory in the stage, which it makes if necessary.
func (f *frame) stage() (*os.File, error) {
	if f.out != nil {
		return f.out, nil
	}
	up, err := f.up.stage()
	if err != nil {
		return nil, err
	}
	if !f.n.staged {
		if err := unix.Mkdirat(int(up.Fd()), f.n.name, 0o700); err != nil {
			return nil, &os.PathError{Op: "mkdir", Path: f.n.name, Err: err}
		}
		f.n.staged = true
	}
	f.out, err = openDir(int(up.Fd()), f.n.name)
	return f.out, err
}

// previous is the directory in the previous capture, or nil.
func (f *frame) previous() *os.File {
	if f.prev != nil || f.noPrev {
		return f.prev
	}
	if up := f.up.previous(); up != nil {
		f.prev, _ = openDir(int(up.Fd()), f.n.name)
	}
	f.noPrev = f.prev == nil
	return f.prev
}

// setAside makes up a name for something kept aside.
func (c *Capture) setAside() string {
	c.asides++
	return strconv.Itoa(c.asides)
}

// discard takes out of the stage what a node has there: at once, however
// much is below it.
func (c *Capture) discard(f *frame, n *node) error {
	if n.staged {
		out, err := f.stage()
		if err != nil {
			return err
		}
		if n.dir != nil {
			err = unix.Renameat(int(out.Fd()), n.name, int(c.aside.Fd()), c.setAside())
		} else {
			err = unix.Unlinkat(int(out.Fd()), n.name, 0)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return &os.PathError{Op: "discard", Path: n.name, Err: err}
		}
	}
	*n = node{name: n.name}
	return nil
}

// keepXattrs remembers the extended attributes of a directory of the upper.
// Setting them now would have what is made in its copy inherit from it.
func (c *Capture) keepXattrs(f *frame) error {
	d := f.n.dir
	xs, err := readXattrsAt(f.src, ".")
	if err != nil {
		return &os.PathError{Op: "read extended attributes", Path: f.n.name, Err: err}
	}
	d.xattrs, d.aside = visible(xs, true), ""
	// Large ones are kept on disk: there may be many such directories.
	size := 0
	for _, x := range d.xattrs {
		size += len(x.name) + len(x.value)
	}
	if size <= 256 {
		return nil
	}
	d.aside = c.setAside()
	if err := unix.Mkdirat(int(c.aside.Fd()), d.aside, 0o700); err != nil {
		return &os.PathError{Op: "mkdir", Path: d.aside, Err: err}
	}
	err = setXattrsAt(c.aside, d.aside, d.xattrs)
	d.xattrs = nil
	return err
}

func setXattrsAt(dir *os.File, name string, xs []xattr) error {
	path := fdPath(dir) + "/" + name
	for _, x := range xs {
		if err := unix.Lsetxattr(path, x.name, x.value, 0); err != nil {
			return &os.PathError{Op: "set extended attribute " + x.name, Path: name, Err: err}
		}
	}
	return nil
}
