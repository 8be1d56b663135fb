package pages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"strings"
)

// What is done about a page.
const (
	own    byte = iota // it is in the pages file
	zero               // it is left out
	shares             // it is in the parent directory
)

// Below these parts it is not worth it.
const (
	worthZero  = 16 // 1/16 of the pages are zero: the file is written anew without them
	worthShare = 4  // 1/4 of the pages are those of another process
	worthBase  = 2  // 1/2 of the pages are those of the base
)

// plan is what is done about one pagemap.
type plan struct {
	name  string // of the file
	id    uint64 // of the process or shared object
	shmem bool
	spans []span // where pages of zeros may be left out; of a process
	exe   uint32 // what it runs; of a process
	from  string // the pagemap that has the shared pages, in the base or in this dump
	donor *plan  // of from, in this dump

	pagesID uint32
	class   []byte // for each page of the pages file
	zeros   int64
	shared  int64
}

func (p *plan) pages() int64 { return int64(len(p.class)) }

// linked says that nothing changes.
func (p *plan) linked() bool { return p.zeros == 0 && p.shared == 0 }

// drop takes back what was decided about pages of a class.
func (p *plan) drop(class byte) {
	for i, c := range p.class {
		if c == class {
			p.class[i] = own
		}
	}
	switch class {
	case zero:
		p.zeros = 0
	case shares:
		p.shared, p.from, p.donor = 0, "", nil
	}
}

// settle drops what is not worth it.
func (p *plan) settle() {
	if p.shared == 0 {
		p.drop(shares)
		// CRIU takes a process without any page for granted not to exist.
		if p.zeros*worthZero < p.pages() || p.zeros == p.pages() && !p.shmem {
			p.drop(zero)
		}
	}
}

// parseName reads the name of a pagemap.
func parseName(name string) (id uint64, shmem, ok bool) {
	s, ok := strings.CutPrefix(name, "pagemap-")
	if !ok {
		return 0, false, false
	}
	if s, ok = strings.CutSuffix(s, ".img"); !ok {
		return 0, false, false
	}
	s, shmem = strings.CutPrefix(s, "shmem-")
	id, err := strconv.ParseUint(s, 10, 63)
	if err != nil || strconv.FormatUint(id, 10) != s {
		return 0, false, false
	}
	return id, shmem, true
}

func mapName(id uint64, shmem bool) string {
	if shmem {
		return fmt.Sprintf("pagemap-shmem-%d.img", id)
	}
	return fmt.Sprintf("pagemap-%d.img", id)
}

// makePlans lists the pagemaps of a dump, parent processes before their children.
func makePlans(src *os.File, names []string, tree map[uint64]uint64) ([]*plan, error) {
	var plans []*plan
	depth := map[*plan]int{}
	for _, name := range names {
		id, shmem, ok := parseName(name)
		if !ok {
			continue
		}
		p := &plan{name: name, id: id, shmem: shmem}
		if !shmem {
			all, exe, err := readMappings(src, id)
			if err != nil {
				return nil, err
			}
			p.spans, p.exe = zeroSpans(all), exe
			for at, n := id, 0; at != 0 && n <= len(tree); at, n = tree[at], n+1 {
				depth[p] = n
			}
		}
		plans = append(plans, p)
	}
	sort.SliceStable(plans, func(i, j int) bool { return depth[plans[i]] < depth[plans[j]] })
	return plans, nil
}

// scanner decides about pages.
type scanner struct {
	ctx  context.Context
	a, b [scanSize]byte
	zero [pageSize]byte
}

// scan reads a pagemap and its pages, and compares them with those of another one; nil
// for none.
func (s *scanner) scan(src *os.File, p *plan, other *chain) error {
	c, err := openLevel(src, p.name, maxDepth)
	if err != nil {
		return err
	}
	defer c.close()
	p.pagesID, p.zeros, p.shared = c.m.id, 0, 0
	p.class = make([]byte, c.size/pageSize)
	spans := spanCursor(p.spans)
	for {
		e, err := c.m.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if e.flags&present == 0 {
			return &FormatError{File: p.name, Message: "an incremental dump"}
		}
		if e.pages > uint64(c.size-c.off)/pageSize {
			return &FormatError{File: c.pf.Name(), Message: "shorter than its pagemap says"}
		}
		for e.pages > 0 {
			n := min(e.pages, scanSize/pageSize)
			part := entry{addr: e.addr, pages: n}
			class := p.class[c.off/pageSize:][:n]
			if err := s.part(c.pf, c.off, part, class, p, &spans, other); err != nil {
				return err
			}
			c.off += int64(n) * pageSize
			e.addr, e.pages = part.end(), e.pages-n
		}
	}
	if c.off != c.size {
		return &FormatError{File: c.pf.Name(), Message: "longer than its pagemap says"}
	}
	return nil
}

func (s *scanner) part(f *os.File, off int64, e entry, class []byte, p *plan, spans *spanCursor, other *chain) error {
	if err := context.Cause(s.ctx); err != nil {
		return err
	}
	a := s.a[:e.pages*pageSize]
	if err := readAt(f, a, off); err != nil {
		return err
	}
	for i := range class {
		if (p.shmem || spans.has(e.addr+uint64(i)*pageSize)) && bytes.Equal(a[i*pageSize:][:pageSize], s.zero[:]) {
			class[i] = zero
			p.zeros++
		}
	}
	if other == nil {
		return nil
	}
	for addr := e.addr; addr < e.end(); {
		x, ok, err := other.at(addr)
		if err != nil {
			return err
		}
		if !ok || x.addr >= e.end() {
			break
		}
		n := min(x.pages, (e.end()-x.addr)/pageSize)
		b := s.b[:n*pageSize]
		if err := readAt(x.file, b, x.off); err != nil {
			return err
		}
		first := int((x.addr - e.addr) / pageSize)
		for i := range int(n) {
			if class[first+i] != own || p.donor != nil && p.donor.class[x.off/pageSize+int64(i)] != own {
				continue
			}
			if bytes.Equal(a[(first+i)*pageSize:][:pageSize], b[i*pageSize:][:pageSize]) {
				class[first+i] = shares
				p.shared++
			}
		}
		addr = x.addr + n*pageSize
	}
	return nil
}
