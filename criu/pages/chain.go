package pages

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// pagesName is the name of a file of memory.
func pagesName(id uint32) string { return fmt.Sprintf("pages-%d.img", id) }

// extent is a run of pages and where they are.
type extent struct {
	addr  uint64
	pages uint64
	flags uint32
	file  *os.File
	off   int64
}

// chain reads one pagemap with the pages it refers to, those of the parent directory
// included, once from its begin to its end.
type chain struct {
	m      *mapReader
	mf, pf *os.File
	size   int64 // of the pages file
	parent *chain
	cur    entry
	off    int64 // in the pages file, of the next entry
	curOff int64
	have   bool
	done   bool
}

// openChain opens the pagemap of that name; fs.ErrNotExist if there is none.
func openChain(dir *os.File, name string) (*chain, error) { return openLevel(dir, name, 1) }

func openLevel(dir *os.File, name string, depth int) (_ *chain, err error) {
	if depth > maxDepth {
		return nil, &FormatError{File: name, Message: "too many directories on top of each other"}
	}
	c := &chain{}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.mf, err = open(dir, name); err != nil {
		return nil, err
	}
	if c.m, err = newMapReader(name, c.mf); err != nil {
		return nil, err
	}
	if c.pf, err = open(dir, pagesName(c.m.id)); err != nil {
		return nil, err
	}
	fi, err := c.pf.Stat()
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", c.pf.Name(), err)
	}
	c.size = fi.Size()
	up, err := openDir(dir, parentDir)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	defer up.Close()
	c.parent, err = openLevel(up, name, depth+1)
	if errors.Is(err, fs.ErrNotExist) {
		c.parent, err = nil, nil
	}
	return c, err
}

func (c *chain) close() {
	if c.parent != nil {
		c.parent.close()
	}
	for _, f := range []*os.File{c.mf, c.pf} {
		if f != nil {
			f.Close()
		}
	}
}

// depth is the number of directories that have a part in this.
func (c *chain) depth() int {
	if c.parent == nil {
		return 1
	}
	return c.parent.depth() + 1
}

// next reads the next entry of this level.
func (c *chain) next() error {
	e, err := c.m.next()
	if errors.Is(err, io.EOF) {
		c.done = true
		return nil
	}
	if err != nil {
		return err
	}
	c.cur, c.curOff, c.have = e, c.off, true
	if e.flags&present != 0 {
		if e.pages > uint64(c.size-c.off)/pageSize {
			return &FormatError{File: c.pf.Name(), Message: "shorter than its pagemap says"}
		}
		c.off += int64(e.pages) * pageSize
	}
	return nil
}

// at gives the first extent that ends after addr, from addr on if it starts earlier;
// false if there is none. Addresses must not descend from call to call.
func (c *chain) at(addr uint64) (extent, bool, error) {
	for !c.done && (!c.have || c.cur.end() <= addr) {
		if err := c.next(); err != nil {
			return extent{}, false, err
		}
	}
	if c.done {
		return extent{}, false, nil
	}
	from := max(addr, c.cur.addr)
	x := extent{addr: from, pages: (c.cur.end() - from) / pageSize, flags: c.cur.flags, file: c.pf}
	if c.cur.flags&present != 0 {
		x.off = c.curOff + int64(from-c.cur.addr)
		return x, true, nil
	}
	if c.parent == nil {
		return extent{}, false, &FormatError{File: c.mf.Name(), Message: "it has no parent"}
	}
	up, ok, err := c.parent.at(from)
	if err != nil {
		return extent{}, false, err
	}
	if !ok || up.addr != from {
		return extent{}, false, &FormatError{File: c.mf.Name(), Message: fmt.Sprintf("the parent has no page at %#x", from)}
	}
	up.pages = min(up.pages, x.pages)
	return up, true, nil
}
