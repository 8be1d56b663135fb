package pages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Stats are the figures of Compact. Pages is the sum of Zero, Shared and Own.
type Stats struct {
	Pages  int64 // of 4096 bytes, in the dump
	Zero   int64 // left out
	Shared int64 // that are in the base, or in another process of the dump
	Own    int64 // that are in the new directory
	// Based says that the new directory has hard links to the base's files. It is whole
	// without the base, but shares its blocks on the disk only as long as they are not
	// written anew, as by Compress.
	Based   bool
	Written int64 // bytes of files that were written; what is linked costs nothing
}

// Compact fills dst, an empty directory, with the images of src, an unchanged dump: pages
// of zeros are left out where that is the same; pages that base has in the same process
// at the same address are referred to, in dst/parent, which has hard links to the files
// of base; likewise pages that a process has from its parent process. base is a directory
// that Compact filled without a base (Stats.Based is false), or nil. When less than half
// of the pages are in base, base is not used, and dst can be the next one.
//
// Neither src nor base is changed; dst shares files with both. All should be on one file
// system: elsewhere, files are copied. Nothing is synced. On an error dst holds what is
// worth nothing, which the caller removes. Errors: *FormatError where images are not what
// is known here; what the file system says; the cause of the context's end.
func Compact(ctx context.Context, src, base, dst *os.File) (Stats, error) {
	names, parent, err := list(src)
	if err != nil {
		return Stats{}, err
	}
	if parent {
		return Stats{}, &FormatError{File: parentDir, Message: "the dump has a parent already"}
	}
	if err := empty(dst); err != nil {
		return Stats{}, err
	}
	tree, err := parents(src)
	if err != nil {
		return Stats{}, err
	}
	c := &compaction{ctx: ctx, src: src, base: base, dst: dst, tree: tree, scanner: &scanner{ctx: ctx}}
	if c.plans, err = makePlans(src, names, tree); err != nil {
		return Stats{}, err
	}
	if err := c.decide(); err != nil {
		return Stats{}, err
	}
	if err := c.write(names); err != nil {
		return Stats{}, err
	}
	return c.stats, nil
}

func empty(dst *os.File) error {
	d, err := openDir(dst, ".")
	if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Readdirnames(1)
	if len(names) > 0 {
		return fmt.Errorf("fill %s: %w", dst.Name(), unix.ENOTEMPTY)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read %s: %w", dst.Name(), err)
	}
	return nil
}

type compaction struct {
	ctx            context.Context
	src, base, dst *os.File
	tree           map[uint64]uint64
	scanner        *scanner
	plans          []*plan
	stats          Stats
}

// decide makes the plans.
func (c *compaction) decide() error {
	if c.base != nil {
		if err := c.compare(); err != nil {
			return err
		}
		var pages, shared int64
		for _, p := range c.plans {
			pages += p.pages() - p.zeros
			shared += p.shared
		}
		c.stats.Based = shared > 0 && shared*worthBase >= pages
	}
	known := &processes{byID: map[uint64]*plan{}, byExe: map[uint32]*plan{}}
	files := map[uint32]bool{}
	for _, p := range c.plans {
		if !c.stats.Based {
			if err := c.compareWithin(p, known); err != nil {
				return err
			}
		}
		p.settle()
		if files[p.pagesID] {
			return &FormatError{File: p.name, Message: "it has the pages file of another one"}
		}
		files[p.pagesID] = true
		known.add(p)
		c.stats.Pages += p.pages()
		c.stats.Zero += p.zeros
		c.stats.Shared += p.shared
	}
	c.stats.Own = c.stats.Pages - c.stats.Zero - c.stats.Shared
	return nil
}

// compare compares all with the base.
func (c *compaction) compare() error {
	former, err := parents(c.base)
	if err != nil {
		return fmt.Errorf("base: %w", err)
	}
	is, err := readShared(c.src, c.tree)
	if err != nil {
		return err
	}
	was, err := readShared(c.base, former)
	if err != nil {
		return fmt.Errorf("base: %w", err)
	}
	objects := is.match(was)
	for _, p := range c.plans {
		// A process that is new may have pages of the one that it was forked from.
		candidates := []uint64{p.id}
		if p.shmem {
			if id, ok := objects[p.id]; ok {
				candidates = []uint64{id}
			}
		} else {
			for at := c.tree[p.id]; at != 0 && len(candidates) <= len(c.tree); at = c.tree[at] {
				candidates = append(candidates, at)
			}
		}
		if err := c.compareBase(p, candidates); err != nil {
			return err
		}
	}
	return nil
}

// compareBase compares with the first of the candidates that the base has.
func (c *compaction) compareBase(p *plan, candidates []uint64) error {
	for _, id := range candidates {
		name := mapName(id, p.shmem)
		base, err := openChain(c.base, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("base: %w", err)
		}
		defer base.close()
		if base.depth() >= maxDepth {
			return &FormatError{File: name, Message: "the base has a base itself"}
		}
		p.from = name
		return c.scanner.scan(c.src, p, base)
	}
	return c.scanner.scan(c.src, p, nil)
}

// processes are those that are decided about.
type processes struct {
	byID  map[uint64]*plan
	byExe map[uint32]*plan // the first that runs it
}

func (k *processes) add(p *plan) {
	if p.shmem {
		return
	}
	k.byID[p.id] = p
	if k.byExe[p.exe] == nil {
		k.byExe[p.exe] = p
	}
}

// donor is the process that another one has likely pages of: that which it was forked
// from or, where that has ended, one that may have been forked from the same. It has all
// its pages to itself.
func (k *processes) donor(p *plan, parent uint64) *plan {
	if p.shmem {
		return nil
	}
	d := k.byID[parent]
	if d == nil || d.exe != p.exe {
		d = k.byExe[p.exe]
	}
	if d != nil && d.donor != nil {
		d = d.donor
	}
	return d
}

// compareWithin compares a process with another one of the dump.
func (c *compaction) compareWithin(p *plan, known *processes) error {
	p.from, p.donor = "", nil
	d := known.donor(p, c.tree[p.id])
	if d == nil {
		return c.scanner.scan(c.src, p, nil)
	}
	other, err := openLevel(c.src, d.name, maxDepth)
	if err != nil {
		return err
	}
	defer other.close()
	p.from, p.donor = d.name, d
	if err := c.scanner.scan(c.src, p, other); err != nil {
		return err
	}
	if p.shared*worthShare < p.pages()-p.zeros {
		p.drop(shares)
	}
	return nil
}

// write fills dst.
func (c *compaction) write(names []string) error {
	done := map[string]bool{}
	for _, p := range c.plans {
		if p.linked() {
			continue
		}
		if err := c.writePlan(p); err != nil {
			return err
		}
		done[p.name], done[pagesName(p.pagesID)] = true, true
	}
	for _, name := range names {
		if done[name] {
			continue
		}
		n, err := link(c.ctx, c.src, name, c.dst, name)
		if err != nil {
			return err
		}
		c.stats.Written += n
	}
	for _, p := range c.plans {
		if p.shared == 0 {
			continue
		}
		from := c.base
		if p.donor != nil {
			from = c.dst
		}
		if err := c.linkParent(from, p.from, c.dst, p.name); err != nil {
			return err
		}
	}
	return nil
}

// linkParent puts a pagemap and its pages, and those it refers to, into the parent of dir.
func (c *compaction) linkParent(fromDir *os.File, from string, dir *os.File, name string) error {
	ch, err := openChain(fromDir, from)
	if err != nil {
		return err
	}
	id, deeper := ch.m.id, ch.parent != nil
	ch.close()
	up, err := makeDir(dir, parentDir)
	if err != nil {
		return err
	}
	defer up.Close()
	for _, l := range [][2]string{{from, name}, {pagesName(id), pagesName(id)}} {
		n, err := linkOnce(c.ctx, fromDir, l[0], up, l[1])
		if err != nil {
			return err
		}
		c.stats.Written += n
	}
	if !deeper {
		return nil
	}
	fromUp, err := openDir(fromDir, parentDir)
	if err != nil {
		return err
	}
	defer fromUp.Close()
	return c.linkParent(fromUp, from, up, name)
}

// writePlan writes a pagemap and its pages.
func (c *compaction) writePlan(p *plan) (err error) {
	src, err := openLevel(c.src, p.name, maxDepth)
	if err != nil {
		return err
	}
	defer src.close()
	mf, err := create(c.dst, p.name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mf.Close()) }()
	pf, err := create(c.dst, pagesName(p.pagesID))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pf.Close()) }()
	m := newMapWriter(mf, src.m.id)
	for class := p.class; ; {
		e, err := src.m.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if e.pages > uint64(len(class)) {
			return &FormatError{File: p.name, Message: "it has changed"}
		}
		part := class[:e.pages]
		class = class[e.pages:]
		for len(part) > 0 {
			n := run(part)
			r := entry{addr: e.addr, pages: uint64(n), flags: e.flags}
			switch part[0] {
			case own:
				m.add(r)
				if err := c.copyPages(src.pf, src.off, pf, int64(n)*pageSize); err != nil {
					return err
				}
			case shares:
				r.flags = inParent
				m.add(r)
			}
			src.off += int64(n) * pageSize
			e.addr, part = r.end(), part[n:]
		}
	}
	if err := m.flush(); err != nil {
		return fmt.Errorf("write %s: %w", p.name, err)
	}
	c.stats.Written += m.bytes
	return nil
}

// run is the number of pages at the begin that are of one class.
func run(class []byte) int {
	n := 1
	for n < len(class) && class[n] == class[0] {
		n++
	}
	return n
}

// copyPages appends bytes of src to dst.
func (c *compaction) copyPages(src *os.File, off int64, dst *os.File, bytes int64) error {
	for bytes > 0 {
		if err := context.Cause(c.ctx); err != nil {
			return err
		}
		b := c.scanner.a[:min(bytes, scanSize)]
		if err := readAt(src, b, off); err != nil {
			return err
		}
		if _, err := dst.Write(b); err != nil {
			return fmt.Errorf("write %s: %w", dst.Name(), err)
		}
		off, bytes = off+int64(len(b)), bytes-int64(len(b))
		c.stats.Written += int64(len(b))
	}
	return nil
}
