package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A hostile image can't have mounts put elsewhere, nor leave the container
// without a root.
func TestBadMountPoints(t *testing.T) {
	p := newPool(t)
	c := startContainer(t, p, 200000)
	c.attach(p, fresh(t, p, "first"))
	c.do(create("/file", "content"))
	want := c.snapshot()
	sym := func(path, to string) op { return op{Kind: "symlink", Path: []byte(path), To: []byte(to)} }
	for name, image := range map[string][]op{
		"/proc is a symbolic link": {sym("proc", "/etc")},
		"/proc is a file":          {create("proc", "")},
		"/proc is a fifo":          {{Kind: "mkfifo", Path: []byte("proc")}},
		"/run/cairn is a link":     {mkdir("run"), sym("run/cairn", "/etc")},
		"/run is a link":           {sym("run", "/etc")},
		"/run is a file":           {create("run", "")},
		"/dev is a link out":       {sym("dev", "../../../../dev")},
	} {
		t.Run(name, func(t *testing.T) {
			id := "i" + strings.Map(func(r rune) rune {
				if r == '/' || r == ' ' {
					return '-'
				}
				return r
			}, name)
			write(t, p, id, image...)
			fresh(t, p, "u"+id)
			_, err := p.Attach(context.Background(), c.target(), Stack{Upper: "u" + id, Layers: []string{id}})
			var bad *BadMountPointError
			if !errors.As(err, &bad) {
				t.Fatalf("%v", err)
			}
			if !strings.HasPrefix(bad.Path, strings.SplitN(name, " ", 2)[0]) {
				t.Errorf("it names %q", bad.Path)
			}
			mustEqual(t, "root", c.snapshot(), want)
			if id, err := AttachedUpper(c.pid()); err != nil || id != "first" {
				t.Errorf("attached: %q, %v", id, err)
			}
			c.do(exists("/proc/1/status"), create("/still", ""), remove("/still"))
			want = c.snapshot()
		})
	}
}

// Mount points that a layer hides are made again.
func TestHiddenMountPoints(t *testing.T) {
	p := newPool(t)
	fresh(t, p, "l")
	v, err := p.MountStack(Stack{Upper: "l"})
	if err != nil {
		t.Fatal(err)
	}
	at := fdPath(v.Root())
	for _, d := range []string{"proc", "run", "dev", ".cairn"} {
		if err := os.RemoveAll(filepath.Join(at, d)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(at, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	c := startContainer(t, p, 200000)
	c.attach(p, fresh(t, p, "u"), "l")
	c.do(exists("/proc/1/status"), exists("/run/cairn"), exists("/dev"), exists("/.cairn/test"))
	root := c.root()
	defer root.Close()
	st, err := lstatAt(int(root.Fd()), "run")
	if err != nil {
		t.Fatal(err)
	}
	if st.Uid != 200000 {
		t.Errorf("/run belongs to %d", st.Uid)
	}
}

func TestBinds(t *testing.T) {
	p := newPool(t)
	c := startContainer(t, p, 200000)
	src := sharedDir(t)
	if err := os.WriteFile(filepath.Join(src, "f"), []byte("host"), 0o600); err != nil {
		t.Fatal(err)
	}
	tg := c.target()
	tg.Binds = []Bind{{Source: src, Target: "/mnt/data"}, {Source: filepath.Join(src, "f"), Target: "/etc/one"}}
	for _, id := range []string{"a", "b"} {
		fresh(t, p, id)
		r, err := p.Attach(context.Background(), tg, Stack{Upper: id})
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		c.do(read("/mnt/data/f", "host"), read("/etc/one", "host"))
		a := c.ask(request{Ops: []op{create("/mnt/data/f", "x"), create("/mnt/data/g", "x"), create("/etc/one", "x")}})
		for i, e := range a.Errors {
			if !strings.Contains(e, "read-only") {
				t.Errorf("write %d: %q", i, e)
			}
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", c.pid()))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(b), " /mnt/data "); n != 1 {
			t.Errorf("%d mounts at /mnt/data", n)
		}
	}
}

// The kernel itself refuses to let a layer become immutable while somebody
// can write to it.
func TestAttachBusy(t *testing.T) {
	p := newPool(t)
	c := startContainer(t, p, 200000)
	c.attach(p, fresh(t, p, "a"))
	c.do(create("/lower", strings.Repeat("l", 4096)))
	pid := c.ask(request{Agent: "open_writable"}).PID
	fresh(t, p, "b")
	_, err := p.Attach(context.Background(), c.target(), Stack{Upper: "b", Layers: []string{"a"}})
	if !errors.Is(err, ErrBusy) {
		t.Fatalf("%v", err)
	}
	c.do(create("/works", "on"))
	c.ask(request{Kill: pid})
	c.attach(p, "b", "a")
	c.do(read("/works", "on"))
}

func TestAttachGone(t *testing.T) {
	p := newPool(t)
	c := startContainer(t, p, 200000)
	fresh(t, p, "a")
	pr, err := p.Prepare(context.Background(), c.target(), Stack{Upper: "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Close()
	c.stop()
	if _, err := pr.Attach(context.Background()); !errors.Is(err, ErrGone) {
		t.Errorf("%v", err)
	}
	if _, err := p.Attach(context.Background(), c.target(), Stack{Upper: "a"}); !errors.Is(err, ErrGone) {
		t.Errorf("%v", err)
	}
}

// What kernels before 6.15 need works as well, and leaves no mount.
func TestPrivateMounts(t *testing.T) {
	p := openPool(t, sharedDir(t), Options{PrivateMounts: true})
	before := hostMounts(t)
	c := startContainer(t, p, 200000)
	c.attach(p, fresh(t, p, "a"))
	c.do(create("/file", "content"), op{Kind: "chown", Path: []byte("/file"), UID: 5, GID: 6})
	c.attach(p, fresh(t, p, "b"), "a")
	c.do(read("/file", "content"))
	st, err := lstatAt(unix.AT_FDCWD, filepath.Join(p.LayerPath("a"), "file"))
	if err != nil {
		t.Fatal(err)
	}
	if st.Uid != 5 || st.Gid != 6 {
		t.Errorf("owner on disk %d:%d", st.Uid, st.Gid)
	}
	if after := hostMounts(t); after != before {
		t.Errorf("mounts were\n%s\nand are\n%s", before, after)
	}
}

func hostMounts(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// "/" keeps its mode, owner and attributes over a switch, and changing them
// is a change.
func TestRootDirectory(t *testing.T) {
	p := newPool(t)
	empty := func(id string, want bool) {
		t.Helper()
		if got, err := p.Empty(id); err != nil || got != want {
			t.Fatalf("%s is empty: %v, %v", id, got, err)
		}
	}
	c := startContainer(t, p, 200000)
	c.attach(p, fresh(t, p, "a"))
	empty("a", true)
	c.do(create("/x", ""), remove("/x"))
	empty("a", true)
	c.do(op{Kind: "chmod", Path: []byte("/"), Mode: 0o711})
	empty("a", false)
	c.attach(p, fresh(t, p, "b"), "a")
	empty("b", true)
	c.do(xattrOp("/", "user.k", "v"))
	empty("b", false)
	want := c.snapshot()
	c.attach(p, fresh(t, p, "c"), "b", "a")
	empty("c", true)
	mustEqual(t, "after the switch", c.snapshot(), want)
	c.do(remove("/tmp"))
	empty("c", false)
}
