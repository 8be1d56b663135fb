package overlay

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// await polls until f says so.
func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-deadline.C:
			t.Fatalf("timed out: %s", what)
		case <-tick.C:
		}
	}
}

// settle waits until changes to a file would have another change time than
// those so far.
func settle(t *testing.T) {
	t.Helper()
	start := time.Now()
	await(t, "clock", func() bool { return time.Since(start) > 2*racyWindow })
}

func TestCaptureLinksWhatDidNotChange(t *testing.T) {
	onEach(t, func(t *testing.T, p *Pool) {
		ctx := context.Background()
		c := startContainer(t, p, 200000)
		c.attach(p, fresh(t, p, "u"))
		c.do(create("/keep", strings.Repeat("k", 100000)), create("/change", "one"), mkdir("/d"), create("/d/in", "in"),
			op{Kind: "link", Path: []byte("/keep"), To: []byte("/d/keep")})
		settle(t)
		if s, err := p.Capture(ctx, "u", "c1", ""); err != nil || s.Linked != 0 || s.Unchanged {
			t.Fatalf("%+v, %v", s, err)
		}
		tree := c.snapshot()
		if s, err := p.Capture(ctx, "u", "none", "c1"); err != nil || !s.Unchanged {
			t.Fatalf("%+v, %v", s, err)
		}
		if ok, _ := p.Exists("none"); ok {
			t.Error("an unchanged capture made a layer")
		}
		c.do(create("/change", "two"))
		s, err := p.Capture(ctx, "u", "c2", "c1")
		if err != nil || s.Linked != 2 || s.BytesCopied > 3 {
			t.Fatalf("%+v, %v", s, err)
		}
		mustEqual(t, "first", viewed(t, p, []string{"c1"}), tree)
		mustEqual(t, "second", viewed(t, p, []string{"c2"}), c.snapshot())
		same := func(a, b string) bool {
			x, err1 := os.Stat(a)
			y, err2 := os.Stat(b)
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			return os.SameFile(x, y)
		}
		if !same(p.LayerPath("c1")+"/keep", p.LayerPath("c2")+"/keep") || same(p.LayerPath("u")+"/keep", p.LayerPath("c2")+"/keep") {
			t.Error("the wrong files are linked")
		}
		c.do(op{Kind: "chmod", Path: []byte("/keep"), Mode: 0o600})
		if _, err := p.Capture(ctx, "u", "c3", "c2"); err != nil {
			t.Fatal(err)
		}
		mustEqual(t, "third", viewed(t, p, []string{"c3"}), c.snapshot())
		mustEqual(t, "first", viewed(t, p, []string{"c1"}), tree)
	})
}

// A store to a shared mapping whose page is dirty already changes neither
// change time nor size. A capture must not take the file for unchanged.
func TestCaptureSeesMappedWrites(t *testing.T) {
	onEach(t, func(t *testing.T, p *Pool) {
		ctx := context.Background()
		path := filepath.Join(p.LayerPath(fresh(t, p, "u")), "mapped")
		if err := os.WriteFile(path, make([]byte, 4096), 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.Munmap(m); err != nil {
				t.Error(err)
			}
		}()
		copy(m, "first")
		settle(t)
		before, err := lstatAt(unix.AT_FDCWD, path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Capture(ctx, "u", "c1", ""); err != nil {
			t.Fatal(err)
		}
		copy(m, "other")
		after, err := lstatAt(unix.AT_FDCWD, path)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("change time moved: %v", before.Ctim != after.Ctim)
		if s, err := p.Capture(ctx, "u", "c2", "c1"); err != nil || s.Unchanged {
			t.Fatalf("%+v, %v", s, err)
		}
		for id, want := range map[string]string{"c1": "first", "c2": "other"} {
			b, err := os.ReadFile(filepath.Join(p.LayerPath(id), "mapped"))
			if err != nil || string(b[:5]) != want {
				t.Errorf("%s has %q, %v", id, b[:5], err)
			}
		}
	})
}

func TestCaptureKeepsHoles(t *testing.T) {
	onEach(t, func(t *testing.T, p *Pool) {
		id := fresh(t, p, "u")
		path := filepath.Join(p.LayerPath(id), "sparse")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt([]byte("middle"), 100<<20); err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(1 << 30); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Capture(context.Background(), id, "c", ""); err != nil {
			t.Fatal(err)
		}
		st, err := lstatAt(unix.AT_FDCWD, filepath.Join(p.LayerPath("c"), "sparse"))
		if err != nil {
			t.Fatal(err)
		}
		if st.Size != 1<<30 || st.Blocks*512 > 1<<20 {
			t.Errorf("size %d, %d bytes allocated", st.Size, st.Blocks*512)
		}
		u, err := p.Usage(context.Background(), "c")
		if err != nil || u.Files != 2 || u.Bytes > 1<<20 {
			t.Errorf("%+v, %v", u, err)
		}
	})
}

// Not only regular files have hard links.
func TestCaptureKeepsHardLinks(t *testing.T) {
	p := newPool(t)
	c := startContainer(t, p, 200000)
	c.attach(p, fresh(t, p, "u"))
	link := func(from, to string) op { return op{Kind: "link", Path: []byte(from), To: []byte(to)} }
	c.do(op{Kind: "symlink", Path: []byte("/l"), To: []byte("target")}, link("/l", "/l2"),
		op{Kind: "mkfifo", Path: []byte("/p")}, link("/p", "/p2"), op{Kind: "mksock", Path: []byte("/s")}, link("/s", "/s2"),
		create("/f", "f"), link("/f", "/f2"))
	prev := ""
	for _, id := range []string{"c1", "c2", "c3"} {
		c.do(create("/other", id))
		if _, err := p.Capture(context.Background(), "u", id, prev); err != nil {
			t.Fatal(err)
		}
		prev = id
		mustEqual(t, id, viewed(t, p, []string{id}), c.snapshot())
	}
}

// A full disk leaves no layer and the next capture works.
func TestCaptureOnFullDisk(t *testing.T) {
	dir := sharedDir(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	p := openPool(t, filepath.Join(dir, "pool"), Options{})
	ctx := context.Background()
	id := write(t, p, "u", create("a", strings.Repeat("a", 3<<20)))
	write(t, p, "filler", create("f", strings.Repeat("f", 4<<20)))
	if _, err := p.Capture(ctx, id, "c", ""); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("%v", err)
	}
	if ok, _ := p.Exists("c"); ok {
		t.Error("the layer is there")
	}
	if err := p.Remove(ctx, "filler"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Capture(ctx, id, "c", ""); err != nil {
		t.Fatal(err)
	}
}

func TestSquashOverLinkLimit(t *testing.T) {
	ctx := context.Background()
	p := newPool(t)
	id := write(t, p, "a", create("f", "content"), mkdir("d"))
	write(t, p, "b", create("g", "other"))
	from := filepath.Join(p.LayerPath(id), "f")
	for i := 0; ; i++ {
		if err := os.Link(from, filepath.Join(p.LayerPath(id), "d", itoa(i))); errors.Is(err, unix.EMLINK) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Squash(ctx, "s", []string{"b", "a"}, nil); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(p.LayerPath("s"), "f"))
	if err != nil || string(b) != "content" {
		t.Fatalf("%q, %v", b, err)
	}
	u, err := p.Usage(ctx, "s")
	v, err2 := p.Usage(ctx, "a")
	if err != nil || err2 != nil || u.Files != v.Files+1 {
		t.Errorf("%+v, expected %+v and one more", u, v)
	}
}
