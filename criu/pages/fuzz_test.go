package pages

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/vma"
)

func readEntries(b []byte) (id uint32, all []entry, err error) {
	m, err := newMapReader("pagemap-1.img", bytes.NewReader(b))
	if err != nil {
		return 0, nil, err
	}
	for {
		e, err := m.next()
		if errors.Is(err, io.EOF) {
			return m.id, all, nil
		}
		if err != nil {
			return m.id, all, err
		}
		all = append(all, e)
	}
}

func writeEntries(id uint32, all []entry) []byte {
	var b bytes.Buffer
	w := newMapWriter(&b, id)
	for _, e := range all {
		w.add(e)
	}
	_ = w.flush() // to memory
	return b.Bytes()
}

// What is taken for a pagemap is in order, and reads the same once written.
func FuzzPagemap(f *testing.F) {
	f.Add(writeEntries(3, []entry{{0x1000, 4, present}, {0x5000, 1, inParent}, {0x7fff00000000, 1 << 20, present | lazy}}))
	f.Add(writeEntries(1, nil))
	// As CRIU 4 has it, and as CRIU 2 had it.
	f.Add([]byte("\x19\x43\x56\x54\x25\x40\x08\x56\x02\x00\x00\x00\x08\x01\x0a\x00\x00\x00\x08\x80\x80\x04\x10\x00\x20\x04\x28\x02"))
	f.Add([]byte("\x19\x43\x56\x54\x25\x40\x08\x56\x02\x00\x00\x00\x08\x01\x08\x00\x00\x00\x08\x80\x80\x04\x10\x02\x18\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, all, err := readEntries(b)
		var fe *FormatError
		if err != nil && !errors.As(err, &fe) {
			t.Fatal(err)
		}
		var end uint64
		for _, e := range all {
			if e.addr%pageSize != 0 || e.addr < end || e.pages == 0 || e.end() <= e.addr || e.end() > maxAddr || e.flags&inParent != 0 == (e.flags&present != 0) {
				t.Fatalf("%+v after %#x", e, end)
			}
			end = e.end()
		}
		again, back, err := readEntries(writeEntries(id, all))
		if err != nil || again != id || len(back) != len(all) {
			t.Fatal(again, back, err)
		}
		for i := range all {
			if back[i] != all[i] {
				t.Fatalf("%+v became %+v", all[i], back[i])
			}
		}
	})
}

// Whatever the images say, Compact ends without a panic, and what it makes can be read if
// what it was made of could be.
func FuzzCompact(f *testing.F) {
	vmas := []*vma.VmaEntry{area(0x10000, 0x20000, regular, anon)}
	good := makeDump(f, f.TempDir(), []process{{pid: 1, vmas: vmas, pages: fill(fill(nil, 0x10000, 4, 1), 0x12000, 2, 0)}}, nil)
	read := func(name string) []byte {
		b, err := os.ReadFile(good.Name() + "/" + name)
		must(f, err)
		return b
	}
	f.Add(read("pagemap-1.img"), read("mm-1.img"), read("pstree.img"))
	content := read("pages-1.img")
	root := f.TempDir()
	f.Fuzz(func(t *testing.T, pagemap, mappings, tree []byte) {
		src, dst := newDir(t, root), newDir(t, root)
		for _, d := range []*os.File{src, dst} {
			defer d.Close()
			defer os.RemoveAll(d.Name())
		}
		for name, b := range map[string][]byte{"pagemap-1.img": pagemap, "mm-1.img": mappings, "pstree.img": tree, "pages-1.img": content} {
			must(t, os.WriteFile(src.Name()+"/"+name, b, 0o644))
		}
		if _, err := Compact(t.Context(), src, good, dst); err != nil {
			return
		}
		// A layout may have pages of two bytes; what matters is that nothing is missing.
		if _, err := readBack(src.Name(), "pagemap-1.img"); err != nil {
			return
		}
		if _, err := readBack(dst.Name(), "pagemap-1.img"); err != nil {
			t.Fatal(err)
		}
	})
}

// file is a compressed file in memory.
type file struct{ *bytes.Reader }

func (file) Name() string { return "pages-1.img.zst" }

func FuzzTable(f *testing.F) {
	f.Add(seekTable(nil, 0))
	f.Add(append([]byte("abc"), seekTable([]byte("\x03\x00\x00\x00\x00\x10\x00\x00"), 1)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parseTable(file{bytes.NewReader(b)}, int64(len(b)))
		if err != nil {
			return
		}
		for _, fr := range p.frames {
			if fr.raw > chunkSize || fr.off < 0 || fr.off+int64(fr.size) > int64(len(b)) {
				t.Fatalf("%+v of %d bytes", fr, len(b))
			}
		}
	})
}
