package pages

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/vma"
	"golang.org/x/sys/unix"
)

// bigDump is a dump of a process with 5 MB, of which half is noise.
func bigDump(t *testing.T, seed uint64) *os.File {
	t.Helper()
	const n = 1300
	vmas := []*vma.VmaEntry{area(0x10000, 1<<40, regular, anon)}
	dir := makeDump(t, t.TempDir(), []process{{pid: 1, vmas: vmas, pages: map[uint64]byte{0x10000: 1}}}, nil)
	content := bytes.Repeat([]byte("memory of a process."), n*pageSize/20+1)[:n*pageSize]
	_, err := rand.NewChaCha8([32]byte{1}).Read(content[n*pageSize/2:])
	must(t, err)
	_, err = rand.NewChaCha8([32]byte{2, byte(seed)}).Read(content[:pageSize])
	must(t, err)
	must(t, os.WriteFile(dir.Name()+"/pages-1.img", content, 0o644))
	must(t, os.WriteFile(dir.Name()+"/pagemap-1.img", writeEntries(1, []entry{{0x10000, n, present}}), 0o644))
	return dir
}

func size(t *testing.T, dir *os.File, name string) (bytes int64, ino uint64) {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Fstatat(int(dir.Fd()), name, &st, 0))
	return st.Size, st.Ino
}

func TestCompress(t *testing.T) {
	full, based := newDir(t, t.TempDir()), newDir(t, t.TempDir())
	_, err := Compact(t.Context(), bigDump(t, 1), nil, full)
	must(t, err)
	s, err := Compact(t.Context(), bigDump(t, 2), full, based)
	must(t, err)
	if !s.Based || s.Own != 1 {
		t.Fatalf("%+v", s)
	}
	packed, basedPacked, alone := newDir(t, t.TempDir()), newDir(t, t.TempDir()), newDir(t, t.TempDir())
	must(t, Compress(t.Context(), full, nil, packed))
	must(t, Compress(t.Context(), based, packed, basedPacked))
	must(t, Compress(t.Context(), based, nil, alone))
	raw, _ := size(t, full, "pages-1.img")
	n, ino := size(t, packed, "pages-1.img.zst")
	if n > raw*6/10 || n < raw/2 {
		t.Errorf("%d bytes became %d", raw, n)
	}
	if _, is := size(t, basedPacked, "parent/pages-1.img.zst"); is != ino {
		t.Error("the compressed pages of the base are there twice")
	}
	if _, is := size(t, alone, "parent/pages-1.img.zst"); is == ino {
		t.Error("it has the base's file")
	}
	for _, c := range []struct{ packed, was *os.File }{{packed, full}, {basedPacked, based}, {alone, based}} {
		again := newDir(t, t.TempDir())
		must(t, Expand(t.Context(), c.packed, again))
		if out, err := exec.Command("diff", "-r", c.was.Name(), again.Name()).CombinedOutput(); err != nil {
			t.Errorf("they differ: %s", out)
		}
	}
	// The wrong base is of no use, and does no harm.
	other := newDir(t, t.TempDir())
	must(t, Compress(t.Context(), bigDump(t, 3), nil, other))
	again := newDir(t, t.TempDir())
	must(t, Compress(t.Context(), based, other, again))
	if _, is := size(t, again, "parent/pages-1.img.zst"); is == ino {
		t.Error("it has another one's file")
	}
}

// Every damage to a compressed file is noticed.
func TestDamage(t *testing.T) {
	packed := newDir(t, t.TempDir())
	must(t, Compress(t.Context(), bigDump(t, 1), nil, packed))
	name := packed.Name() + "/pages-1.img.zst"
	good, err := os.ReadFile(name)
	must(t, err)
	try := func(what string, b []byte) {
		must(t, os.WriteFile(name, b, 0o644))
		err := Expand(t.Context(), packed, newDir(t, t.TempDir()))
		var fe *FormatError
		if !errors.As(err, &fe) {
			t.Errorf("%s: %v", what, err)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 30 {
		b := bytes.Clone(good)
		b[r.IntN(len(b)-20)] ^= 1 << r.IntN(8)
		try("a bit", b)
	}
	for _, n := range []int{0, 1, 8, 16, len(good) / 2, len(good) - 1} {
		try("cut", good[:n])
	}
	try("something in front", append([]byte("x"), good...))
	must(t, os.WriteFile(name, good, 0o644))
	must(t, Expand(t.Context(), packed, newDir(t, t.TempDir())))
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("stopped")
	cancel(reason)
	if err := Expand(ctx, packed, newDir(t, t.TempDir())); !errors.Is(err, reason) {
		t.Errorf("it was not stopped: %v", err)
	}
	if err := Compress(ctx, bigDump(t, 1), nil, newDir(t, t.TempDir())); !errors.Is(err, reason) {
		t.Errorf("it was not stopped: %v", err)
	}
}
