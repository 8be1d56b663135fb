package pages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/vma"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// fill gives n pages from an address on.
func fill(pages map[uint64]byte, addr uint64, n int, b byte) map[uint64]byte {
	if pages == nil {
		pages = map[uint64]byte{}
	}
	for i := range n {
		pages[addr+uint64(i)*pageSize] = b
	}
	return pages
}

// Zeros are left out of exactly the mappings where absence is the same.
func TestWhereZerosAreLeftOut(t *testing.T) {
	for name, c := range map[string]struct {
		status, flags uint32
		out           bool
	}{
		"anonymous":           {regular, anon, true},
		"heap":                {regular | areaHeap, anon, true},
		"stack":               {regular | areaStack, anon | unix.MAP_GROWSDOWN, true},
		"private file":        {filePrivate, unix.MAP_PRIVATE, false},
		"private file, anon":  {filePrivate | anonPrivate, anon, false},
		"huge pages":          {regular, anon | unix.MAP_HUGETLB, false},
		"vdso":                {regular | 1<<3, anon, false},
		"vvar":                {regular | 1<<12, anon, false},
		"AIO ring":            {regular | 1<<13, anon, false},
		"memfd":               {regular | 1<<14, anon, false},
		"shadow stack":        {regular | 1<<15, anon, false},
		"guard":               {1 << 16, anon, false},
		"plugin":              {regular | 1<<27, anon, false},
		"not yet known":       {regular | 1<<20, anon, false},
		"shared":              {regular, unix.MAP_SHARED | unix.MAP_ANONYMOUS, false},
		"not regular":         {anonPrivate, anon, false},
		"without a mapping":   {0, 0, false},
		"private, not anon":   {regular, unix.MAP_PRIVATE, false},
		"anonymous, uprobes":  {regular | 1<<17, anon, false},
		"System V and so on":  {regular | 1<<10, anon, false},
		"socket":              {regular | 1<<11, anon, false},
		"unsupported by CRIU": {regular | 1<<31, anon, false},
	} {
		t.Run(name, func(t *testing.T) {
			src := makeDump(t, t.TempDir(), []process{{
				pid: 1, vmas: []*vma.VmaEntry{area(0x10000, 0x20000, c.status, c.flags), area(0x20000, 0x30000, filePrivate, unix.MAP_PRIVATE)},
				pages: fill(fill(nil, 0x10000, 4, 0), 0x20000, 4, 7),
			}}, nil)
			dst := newDir(t, t.TempDir())
			s, err := Compact(t.Context(), src, nil, dst)
			must(t, err)
			want := Stats{Pages: 8, Own: 8}
			if c.out {
				want.Zero, want.Own = 4, 4
			}
			want.Written = s.Written
			if s != want {
				t.Errorf("%+v, not %+v", s, want)
			}
		})
	}
}

// A process is never left without any page: CRIU follows a null pointer then.
func TestAllZeros(t *testing.T) {
	src := makeDump(t, t.TempDir(), []process{{
		pid: 1, vmas: []*vma.VmaEntry{area(0x10000, 0x20000, regular, anon)}, pages: fill(nil, 0x10000, 4, 0),
	}}, map[uint64]map[uint64]byte{99: fill(nil, 0, 8, 0)})
	dst := newDir(t, t.TempDir())
	s, err := Compact(t.Context(), src, nil, dst)
	must(t, err)
	if s.Own != 4 || s.Zero != 8 {
		t.Errorf("%+v", s)
	}
	if got, err := readBack(dst.Name(), mapName(99, true)); err != nil || len(got) != 0 {
		t.Errorf("the shared object: %v, %v", got, err)
	}
}

// Processes that were forked from one another, or from one that has ended, share pages.
func TestWithinOneDump(t *testing.T) {
	vmas := []*vma.VmaEntry{area(0x10000, 0x40000, regular, anon)}
	all := fill(nil, 0x10000, 16, 1)
	src := makeDump(t, t.TempDir(), []process{
		{pid: 1, vmas: vmas, pages: all},
		{pid: 2, ppid: 1, vmas: vmas, pages: fill(fill(nil, 0x10000, 16, 1), 0x10000, 2, 3)},
		{pid: 3, ppid: 2, vmas: vmas, pages: fill(fill(nil, 0x10000, 16, 1), 0x10000, 3, 0)},
		{pid: 4, ppid: 77, vmas: vmas, pages: fill(nil, 0x10000, 8, 1)},
		{pid: 5, ppid: 1, vmas: vmas, pages: fill(fill(nil, 0x20000, 16, 1), 0x10000, 2, 1)}, // less than is worth it
	}, nil)
	dst := newDir(t, t.TempDir())
	s, err := Compact(t.Context(), src, nil, dst)
	must(t, err)
	if want := (Stats{Pages: 74, Zero: 3, Shared: 14 + 13 + 8, Own: 16 + 2 + 18, Written: s.Written}); s != want {
		t.Errorf("%+v, not %+v", s, want)
	}
	for _, pid := range []uint64{2, 3, 4} {
		if got, err := readBack(dst.Name(), mapName(pid, false)); err != nil || got[0x10000+7*pageSize] != 1 {
			t.Errorf("process %d: %v, %v", pid, got, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dst.Name(), parentDir, "pagemap-5.img")); err == nil {
		t.Error("CRIU would read process 5 in the slow way for nothing")
	}
}

// Half of the pages decide whether a base is used.
func TestHalf(t *testing.T) {
	vmas := []*vma.VmaEntry{area(0, 0x100000, regular, anon)}
	base := makeDump(t, t.TempDir(), []process{{pid: 1, vmas: vmas, pages: fill(nil, 0x10000, 20, 1)}}, nil)
	for same, based := range map[int]bool{0: false, 9: false, 10: true, 20: true} {
		pages := fill(fill(nil, 0x10000, 20, 2), 0x10000, same, 1)
		src := makeDump(t, t.TempDir(), []process{{pid: 1, vmas: vmas, pages: pages}}, nil)
		dst := newDir(t, t.TempDir())
		s, err := Compact(t.Context(), src, base, dst)
		must(t, err)
		if s.Based != based || based && s.Shared != int64(same) {
			t.Errorf("%d of 20 are the same: %+v", same, s)
		}
		if _, err := os.Stat(filepath.Join(dst.Name(), parentDir)); (err == nil) != based {
			t.Errorf("%d of 20 are the same: parent: %v", same, err)
		}
	}
}

// What Compact writes reads as what it was made of, whatever processes are like.
func TestReadsTheSame(t *testing.T) {
	root := t.TempDir()
	rapid.Check(t, func(r *rapid.T) {
		draw := func(label string, n int) int { return rapid.IntRange(0, n).Draw(r, label) }
		vmas := []*vma.VmaEntry{
			area(0x10000, 0x18000, regular, anon), area(0x18000, 0x20000, filePrivate, unix.MAP_PRIVATE), area(0x20000, 0x28000, regular, anon),
		}
		dumpOf := func(label string) ([]process, map[uint64]map[uint64]byte) {
			var all []process
			for i := range 1 + draw(label+" processes", 3) {
				pages := map[uint64]byte{}
				for at := uint64(0x10000); at < 0x28000; at += pageSize {
					if b := draw(label, 6); b < 4 {
						pages[at] = byte(b / 2)
					}
				}
				pages[0x18000] = 9
				all = append(all, process{pid: uint32(i + 1), ppid: uint32(draw("parent", i)), vmas: vmas, pages: pages})
			}
			object := map[uint64]byte{}
			for at := uint64(0); at < 0x8000; at += pageSize {
				if b := draw("object", 3); b < 3 {
					object[at] = byte(b)
				}
			}
			return all, map[uint64]map[uint64]byte{7: object}
		}
		baseProcesses, baseObjects := dumpOf("base")
		processes, objects := dumpOf("dump")
		base, dst := newDir(r, root), newDir(r, root)
		first, src := makeDump(r, root, baseProcesses, baseObjects), makeDump(r, root, processes, objects)
		for _, d := range []*os.File{base, dst, first, src} {
			defer d.Close()
			defer os.RemoveAll(d.Name())
		}
		if _, err := Compact(context.Background(), first, nil, base); err != nil {
			r.Fatal(err)
		}
		s, err := Compact(context.Background(), src, base, dst)
		if err != nil {
			r.Fatal(err)
		}
		zeros := int64(0)
		compare := func(name string, want map[uint64]byte, optional func(uint64) bool) {
			got, err := readBack(dst.Name(), name)
			if err != nil {
				r.Fatal(err)
			}
			for at, b := range want {
				g, ok := got[at]
				if !ok {
					zeros++
				}
				if ok && g != b || !ok && (b != 0 || !optional(at)) {
					r.Fatalf("%s: %#x is %d (%v), not %d", name, at, g, ok, b)
				}
			}
			for at := range got {
				if _, ok := want[at]; !ok {
					r.Fatalf("%s: there is a page at %#x", name, at)
				}
			}
		}
		for _, p := range processes {
			compare(mapName(uint64(p.pid), false), p.pages, func(at uint64) bool { return at < 0x18000 || at >= 0x20000 })
		}
		compare(mapName(7, true), objects[7], func(uint64) bool { return true })
		if zeros != s.Zero {
			r.Fatalf("%d pages are not there: %+v", zeros, s)
		}
	})
}

// Where there can't be hard links, files are copied.
func TestOtherFileSystem(t *testing.T) {
	shm, err := os.MkdirTemp("/dev/shm", "")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(shm)) })
	vmas := []*vma.VmaEntry{area(0x10000, 0x20000, regular, anon)}
	pages := fill(fill(nil, 0x10000, 12, 1), 0x10000, 1, 0)
	src := makeDump(t, shm, []process{{pid: 1, vmas: vmas, pages: pages}}, nil)
	full, based := newDir(t, t.TempDir()), newDir(t, shm)
	s, err := Compact(t.Context(), src, nil, full)
	must(t, err)
	if s.Written <= s.Own*pageSize {
		t.Errorf("%+v", s)
	}
	s, err = Compact(t.Context(), src, full, based)
	must(t, err)
	if !s.Based || s.Shared != 11 || s.Written <= s.Shared*pageSize {
		t.Errorf("%+v", s)
	}
	if got, err := readBack(based.Name(), "pagemap-1.img"); err != nil || len(got) != 11 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestRefused(t *testing.T) {
	vmas := []*vma.VmaEntry{area(0x10000, 0x20000, regular, anon)}
	good := func() *os.File {
		return makeDump(t, t.TempDir(), []process{{pid: 1, vmas: vmas, pages: fill(nil, 0x10000, 4, 1)}}, nil)
	}
	pagemap := func(entries ...entry) func(*os.File) error {
		return func(d *os.File) error {
			var b bytes.Buffer
			w := newMapWriter(&b, 1)
			for _, e := range entries {
				w.add(e)
			}
			return errors.Join(w.flush(), os.WriteFile(d.Name()+"/pagemap-1.img", b.Bytes(), 0o644))
		}
	}
	for name, change := range map[string]func(*os.File) error{
		"a parent":               func(d *os.File) error { return os.Mkdir(d.Name()+"/parent", 0o755) },
		"a symbolic link":        func(d *os.File) error { return os.Symlink("/etc/passwd", d.Name()+"/pages-2.img") },
		"a directory":            func(d *os.File) error { return os.Mkdir(d.Name()+"/x", 0o755) },
		"a fifo":                 func(d *os.File) error { return unix.Mkfifo(d.Name()+"/pages-2.img", 0o644) },
		"pages are missing":      func(d *os.File) error { return os.Truncate(d.Name()+"/pages-1.img", 3*pageSize) },
		"pages are left over":    func(d *os.File) error { return os.Truncate(d.Name()+"/pages-1.img", 5*pageSize) },
		"half a page":            func(d *os.File) error { return os.Truncate(d.Name()+"/pages-1.img", 4*pageSize+7) },
		"in a parent":            pagemap(entry{0x10000, 4, inParent}),
		"out of order":           pagemap(entry{0x12000, 2, present}, entry{0x10000, 2, present}),
		"overlap":                pagemap(entry{0x10000, 2, present}, entry{0x11000, 2, present}),
		"too many pages":         pagemap(entry{0x10000, 1 << 60, present}),
		"beyond the file":        pagemap(entry{0x10000, 1 << 40, present}),
		"a crooked address":      pagemap(entry{0x10001, 4, present}),
		"beyond the end":         pagemap(entry{1 << 56, 4, present}),
		"no pages":               pagemap(entry{0x10000, 0, present}, entry{0x10000, 4, present}),
		"flags not known":        pagemap(entry{0x10000, 4, present | 8}),
		"neither here nor there": pagemap(entry{0x10000, 4, lazy}),
		"one file for two": func(d *os.File) error {
			b, err := os.ReadFile(d.Name() + "/pagemap-1.img")
			return errors.Join(err, os.WriteFile(d.Name()+"/pagemap-shmem-1.img", b, 0o644))
		},
		"mappings cut short": func(d *os.File) error { return os.Truncate(d.Name()+"/mm-1.img", 40) },
		"a huge image":       func(d *os.File) error { return os.Truncate(d.Name()+"/mm-1.img", maxImage+1) },
	} {
		t.Run(name, func(t *testing.T) {
			src := good()
			must(t, change(src))
			_, err := Compact(t.Context(), src, nil, newDir(t, t.TempDir()))
			var fe *FormatError
			if !errors.As(err, &fe) {
				t.Errorf("it was taken: %v", err)
			}
		})
	}
	_, err := Compact(t.Context(), good(), nil, good())
	if !errors.Is(err, unix.ENOTEMPTY) {
		t.Errorf("a directory with files was filled: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("stopped")
	cancel(reason)
	if _, err := Compact(ctx, good(), nil, newDir(t, t.TempDir())); !errors.Is(err, reason) {
		t.Errorf("it was not stopped: %v", err)
	}
}

// A base on a base on a base is not taken, however it came to be.
func TestDepth(t *testing.T) {
	vmas := []*vma.VmaEntry{area(0x10000, 0x20000, regular, anon)}
	var base *os.File
	for i := range 4 {
		src := makeDump(t, t.TempDir(), []process{{pid: 1, vmas: vmas, pages: fill(fill(nil, 0x10000, 14, 1), 0x10000, i, byte(1+i))}}, nil)
		dst := newDir(t, t.TempDir())
		_, err := Compact(t.Context(), src, base, dst)
		var fe *FormatError
		if i < 3 {
			must(t, err)
		} else if !errors.As(err, &fe) {
			t.Errorf("%v", err)
		}
		base = dst
	}
}

func BenchmarkCompact(b *testing.B) {
	const n = 50000
	vmas := []*vma.VmaEntry{area(0x10000, 1<<40, regular, anon)}
	dir := makeDump(b, b.TempDir(), []process{{pid: 1, vmas: vmas, pages: map[uint64]byte{0x10000: 1}}}, nil)
	content := bytes.Repeat([]byte("memory of a process."), n*pageSize/20+1)[:n*pageSize]
	must(b, os.WriteFile(dir.Name()+"/pages-1.img", content, 0o644))
	var m bytes.Buffer
	w := newMapWriter(&m, 1)
	w.add(entry{0x10000, n, present})
	must(b, w.flush())
	must(b, os.WriteFile(dir.Name()+"/pagemap-1.img", m.Bytes(), 0o644))
	base := newDir(b, b.TempDir())
	_, err := Compact(b.Context(), dir, nil, base)
	must(b, err)
	content[n*pageSize/2] ^= 1
	must(b, os.Remove(dir.Name()+"/pages-1.img"))
	must(b, os.WriteFile(dir.Name()+"/pages-1.img", content, 0o644))
	b.SetBytes(n * pageSize)
	for i := 0; b.Loop(); i++ {
		dst := newDir(b, b.TempDir())
		s, err := Compact(b.Context(), dir, base, dst)
		if err != nil || s.Own != 1 || !s.Based {
			b.Fatal(fmt.Sprintf("%+v", s), err)
		}
		dst.Close()
	}
}
