package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stop stops a process and returns when all its threads have.
func stop(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	await(t, "stop", func() bool {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(stats) == 0 {
			t.Fatal("the process is gone", err)
		}
		for _, s := range stats {
			b, err := os.ReadFile(s)
			if err != nil {
				return false
			}
			_, rest, _ := strings.Cut(string(b), ") ")
			if !strings.HasPrefix(rest, "T") {
				return false
			}
		}
		return true
	})
}

// Whatever a process does while an upper is copied: the capture is what the
// upper was like when the process stood still.
func TestCaptureOfLiveUpper(t *testing.T) {
	onEach(t, func(t *testing.T, p *Pool) {
		ctx := context.Background()
		var base []op
		for d := range 12 {
			base = append(base, mkdir(fmt.Sprintf("w/d%d", d)))
			for f := range 12 {
				base = append(base, create(fmt.Sprintf("w/d%d/f%d", d, f), "below"))
			}
		}
		write(t, p, "base", append([]op{mkdir("w")}, base...)...)
		c := startContainer(t, p, 500000)
		c.attach(p, fresh(t, p, "u"), "base")
		const still = 1500 // gives the copy something to do
		var ops []op
		for i := range still {
			ops = append(ops, create(fmt.Sprintf("/still%d", i), "s"))
		}
		c.do(ops...)
		c.ask(request{Agent: fmt.Sprintf("hammer %d", time.Now().UnixNano())})
		var pid int
		for _, each := range processesOf(t, c.pid()) {
			if each != c.pid() {
				pid = each
			}
		}
		prev := ""
		for round := range 15 {
			id := fmt.Sprintf("c%d", round)
			cp, err := p.StartCapture(ctx, "u", id, prev)
			if err != nil {
				t.Fatal(err)
			}
			defer cp.Close()
			stop(t, pid)
			unchanged, err := cp.Finish(ctx)
			if err != nil {
				t.Fatal(err)
			}
			tree := c.snapshot()
			if err := unix.Kill(pid, unix.SIGCONT); err != nil {
				t.Fatal(err)
			}
			s, err := cp.Commit(ctx)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", s)
			if unchanged {
				t.Fatal("nothing changed: the process does nothing")
			}
			if s.Late > s.Files-still {
				t.Errorf("%d of %d copied late", s.Late, s.Files)
			}
			mustEqual(t, id, viewed(t, p, []string{id, "base"}), tree)
			prev = id
		}
	})
}

// within starts a capture during which f is called at a step, and finishes it.
func within(t *testing.T, p *Pool, prev, id, step string, f func()) CaptureStats {
	t.Helper()
	ctx := context.Background()
	done := false
	p.fail = func(s string) error {
		if s == step && !done {
			done = true
			f()
		}
		return nil
	}
	c, err := p.StartCapture(ctx, "u", id, prev)
	p.fail = nil
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if !done {
		t.Fatalf("%q was not reached", step)
	}
	if _, err := c.Finish(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := c.Commit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

type mapping struct {
	t *testing.T
	m []byte
}

func mapFile(t *testing.T, path string) mapping {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	return mapping{t, m}
}

func (m mapping) close() {
	if err := unix.Munmap(m.m); err != nil {
		m.t.Error(err)
	}
}

func (p *Pool) mustRead(t *testing.T, id, name, want string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(p.LayerPath(id), name))
	if err != nil || !strings.HasPrefix(string(b), want) {
		t.Errorf("%s of %s is %.20q, %v; expected %q", name, id, b, err, want)
	}
}

// A store to a page that is dirty already changes no time. A mapping that was
// there before the copy, and is gone before the processes stand still, must
// not hide one.
func TestCaptureSeesMappingThatIsGone(t *testing.T) {
	onEach(t, func(t *testing.T, p *Pool) {
		ctx := context.Background()
		path := filepath.Join(p.LayerPath(fresh(t, p, "u")), "f")
		if err := os.WriteFile(path, make([]byte, 4096), 0o644); err != nil {
			t.Fatal(err)
		}
		m := mapFile(t, path)
		copy(m.m, "first")
		settle(t)
		c, err := p.StartCapture(ctx, "u", "c", "")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		before, err := lstatAt(unix.AT_FDCWD, path)
		if err != nil {
			t.Fatal(err)
		}
		copy(m.m, "other")
		m.close()
		after, err := lstatAt(unix.AT_FDCWD, path)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("change time moved: %v", before.Ctim != after.Ctim)
		if _, err := c.Finish(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		p.mustRead(t, "c", "f", "other")
	})
}

// A mapping that is made after the look, stored to before the copy and again
// afterwards: the first store changes the time.
func TestCaptureSeesMappingDuringCopy(t *testing.T) {
	onEach(t, func(t *testing.T, p *Pool) {
		path := filepath.Join(p.LayerPath(fresh(t, p, "u")), "f")
		if err := os.WriteFile(path, make([]byte, 4096), 0o644); err != nil {
			t.Fatal(err)
		}
		settle(t)
		var m mapping
		c := 0
		p.fail = func(step string) error {
			switch {
			case c == 0 && step == "capture: opened f":
				m = mapFile(t, path)
				copy(m.m, "first")
				c++
			case c == 1 && step == "capture: copied f":
				copy(m.m, "other")
				m.close()
				c++
			}
			return nil
		}
		cp, err := p.StartCapture(context.Background(), "u", "c", "")
		p.fail = nil
		if err != nil {
			t.Fatal(err)
		}
		defer cp.Close()
		if c != 2 {
			t.Fatal("the file was not copied while in use")
		}
		if _, err := cp.Finish(context.Background()); err != nil {
			t.Fatal(err)
		}
		if _, err := cp.Commit(context.Background()); err != nil {
			t.Fatal(err)
		}
		p.mustRead(t, "c", "f", "other")
	})
}

// On tmpfs no store to a page that was read before changes a time, so times
// say nothing about files there.
func TestCaptureOnTmpfs(t *testing.T) {
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
	path := filepath.Join(p.LayerPath(fresh(t, p, "u")), "f")
	if err := os.WriteFile(path, []byte(strings.Repeat("first", 1000)), 0o644); err != nil {
		t.Fatal(err)
	}
	settle(t)
	store := func(s string) {
		m := mapFile(t, path)
		if m.m[0] == 0 {
			t.Error("the file is empty")
		}
		copy(m.m, s)
		m.close()
	}
	prev := ""
	for i, s := range []string{"other", "third"} {
		ctx := context.Background()
		id := "c" + itoa(i)
		c, err := p.StartCapture(ctx, "u", id, prev)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		store(s)
		if _, err := c.Finish(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		p.mustRead(t, id, "f", s)
		prev = id
	}
}

// What changed just before the look could change again within the same tick
// of the clock: it is copied late.
func TestCaptureOfWhatJustChanged(t *testing.T) {
	ctx := context.Background()
	p := newPool(t)
	dir := p.LayerPath(fresh(t, p, "u"))
	for _, name := range []string{"a", "b", "c"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	settle(t)
	if err := os.WriteFile(filepath.Join(dir, "b"), []byte("B"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := p.StartCapture(ctx, "u", "c1", "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Finish(ctx); err != nil {
		t.Fatal(err)
	}
	if s, err := c.Commit(ctx); err != nil || s.Late != 1 || s.Files != 4 {
		t.Fatalf("%+v, %v", s, err)
	}
	for _, s := range []struct {
		ctime, limit unix.Timespec
		want         bool
	}{
		{unix.Timespec{Sec: 5, Nsec: 100}, unix.Timespec{Sec: 5, Nsec: 101}, true},
		{unix.Timespec{Sec: 5, Nsec: 100}, unix.Timespec{Sec: 5, Nsec: 100}, false},
		{unix.Timespec{Sec: 6, Nsec: 1}, unix.Timespec{Sec: 5, Nsec: 999}, false}, // in the future
		{unix.Timespec{Sec: 5}, unix.Timespec{Sec: 7, Nsec: 999}, false},          // whole seconds
		{unix.Timespec{Sec: 5}, unix.Timespec{Sec: 8}, true},
	} {
		if got := settledBefore(&unix.Stat_t{Ctim: s.ctime}, s.limit); got != s.want {
			t.Errorf("%+v: %v", s, got)
		}
	}
}

// After the clock was set back nothing is taken for unchanged.
func TestCaptureWithClockSetBack(t *testing.T) {
	ctx := context.Background()
	p := newPool(t)
	path := filepath.Join(p.LayerPath(fresh(t, p, "u")), "f")
	if err := os.WriteFile(path, []byte("f"), 0o644); err != nil {
		t.Fatal(err)
	}
	settle(t)
	c, err := p.StartCapture(ctx, "u", "c1", "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.step.offset += time.Second // as if it had been ahead by that
	if _, err := c.Finish(ctx); err != nil {
		t.Fatal(err)
	}
	if s, err := c.Commit(ctx); err != nil || s.Late != 2 {
		t.Fatalf("%+v, %v", s, err)
	}
}

// Things put in the place of others between being looked at and being copied
// lead nowhere, and the copy is right in the end.
func TestCaptureOfSwappedEntries(t *testing.T) {
	outside := filepath.Join(sharedDir(t), "secret")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "in"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	onEach(t, func(t *testing.T, p *Pool) {
		fresh(t, p, "u")
		at := func(s string) string { return filepath.Join(p.LayerPath("u"), s) }
		must := func(errs ...error) {
			if err := errors.Join(errs...); err != nil {
				t.Error(err)
			}
		}
		make1 := func() {
			must(os.RemoveAll(at("a")), os.RemoveAll(at("z")), os.Mkdir(at("a"), 0o755), os.Mkdir(at("z"), 0o755))
			for _, f := range []string{"a/in", "a/other", "z/in"} {
				must(os.WriteFile(at(f), []byte("good"), 0o644))
			}
		}
		for i, swap := range []func(){
			func() { must(os.Truncate(at("a/in"), 0)) },
			func() { must(os.Remove(at("a/in")), unix.Mkfifo(at("a/in"), 0o644)) },
			func() { must(os.Remove(at("a/in")), os.Symlink(outside+"/in", at("a/in"))) },
			func() { must(os.Remove(at("a/in")), unix.Mknod(at("a/in"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5)))) },
			func() { must(os.RemoveAll(at("a")), os.Symlink(outside, at("a"))) },
			func() { must(os.RemoveAll(at("z")), os.Symlink(outside, at("z"))) },
			func() { must(os.Rename(at("a"), at("z/a")), os.Rename(at("z"), at("y"))) },
			func() { must(unix.Renameat2(unix.AT_FDCWD, at("a"), unix.AT_FDCWD, at("z"), unix.RENAME_EXCHANGE)) },
			func() { must(os.Link(at("a/in"), at("z/link")), os.Link(at("a/other"), at("a/more"))) },
			func() {
				must(os.Remove(at("a/in")), os.Mkdir(at("a/in"), 0o700), os.WriteFile(at("a/in/x"), nil, 0o600))
			},
		} {
			make1()
			settle(t)
			id := "c" + itoa(i)
			within(t, p, "", id, "capture: opened in", swap)
			mustEqual(t, id, viewed(t, p, []string{id}), viewed(t, p, []string{"u"}))
			must(os.RemoveAll(at("y")))
		}
	})
}

// An end of the context, or an error, in any pass leaves nothing behind.
func TestCaptureGivenUp(t *testing.T) {
	p := newPool(t)
	dir := p.LayerPath(fresh(t, p, "u"))
	for i := range 20 {
		if err := os.WriteFile(filepath.Join(dir, itoa(i)), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	settle(t)
	why := errors.New("enough")
	clean := func(what string) {
		t.Helper()
		es, err := os.ReadDir(p.path(stagingDir))
		if err != nil || len(es) > 0 {
			t.Errorf("%s: staging has %v, %v", what, es, err)
		}
		if ok, err := p.Exists("c"); ok || err != nil {
			t.Errorf("%s: the layer is there, %v", what, err)
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	p.fail = func(string) error { cancel(why); return nil }
	if _, err := p.StartCapture(ctx, "u", "c", ""); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
	p.fail = nil
	clean("cancelled while in use")
	for _, errno := range []unix.Errno{unix.ENOSPC, unix.EDQUOT} {
		p.fail = func(string) error { return errno }
		if _, err := p.StartCapture(context.Background(), "u", "c", ""); !errors.Is(err, errno) {
			t.Errorf("%v", err)
		}
		p.fail = nil
		clean(errno.Error())
	}
	ctx, cancel = context.WithCancelCause(context.Background())
	c, err := p.StartCapture(ctx, "u", "c", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Commit(ctx); err == nil {
		t.Error("committed without being finished")
	}
	cancel(why)
	if _, err := c.Finish(ctx); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
	if err := errors.Join(c.Close(), c.Close()); err != nil {
		t.Error(err)
	}
	clean("cancelled while frozen")
}
