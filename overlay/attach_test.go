package overlay

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAttachSwitchesRoot(t *testing.T) {
	onEach(t, func(t *testing.T, p *Pool) {
		c := startContainer(t, p, 200000)
		if id, err := AttachedUpper(c.pid()); err != nil || id != "" {
			t.Fatalf("blank container: %q, %v", id, err)
		}
		c.attach(p, fresh(t, p, "a"))
		c.do(mkdir("/dir/sub"), create("/dir/file", "one"), op{Kind: "chown", Path: []byte("/dir/file"), UID: 7, GID: 8})
		if id, err := AttachedUpper(c.pid()); err != nil || id != "a" {
			t.Fatalf("attached: %q, %v", id, err)
		}
		want := c.snapshot()
		c.attach(p, fresh(t, p, "b"), "a")
		mustEqual(t, "after the switch", c.snapshot(), want)
		c.do(create("/dir/file", "two"), remove("/dir/sub"), exists("/proc/1/status"), exists("/run/cairn"))
		c.attach(p, fresh(t, p, "c"), "a")
		mustEqual(t, "after going back", c.snapshot(), want)
		mustEqual(t, "view", viewed(t, p, []string{"a"}), want)
		st, err := os.Stat(filepath.Join(p.LayerPath("a"), "dir"))
		if err != nil {
			t.Fatal(err)
		}
		if got := st.Mode(); got != os.ModeDir|0o755 {
			t.Errorf("mode %v", got)
		}
	})
}

func TestAttachSetsHostname(t *testing.T) {
	p := newPool(t)
	c := startContainer(t, p, 200000)
	tg := c.target()
	tg.Hostname = "first"
	fresh(t, p, "a")
	r, err := p.Attach(context.Background(), tg, Stack{Upper: "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c.do(op{Kind: "hostname", Path: []byte("first")})
}

// A failure at any step leaves the root, its mounts and the host name alone.
func TestAttachUndoesEveryStep(t *testing.T) {
	p := newPool(t)
	c := startContainer(t, p, 200000)
	tg := c.target()
	tg.Hostname = "before"
	fresh(t, p, "a")
	fresh(t, p, "b")
	r, err := p.Attach(context.Background(), tg, Stack{Upper: "a"})
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	c.do(create("/file", "content"))
	want := c.snapshot()
	table := func() string {
		b, err := os.ReadFile(filepath.Join("/proc", itoa(c.pid()), "mountinfo"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	var steps []string
	p.fail = func(step string) error { steps = append(steps, step); return nil }
	tg.Hostname = "after"
	fresh(t, p, "probe")
	if r, err = p.Attach(context.Background(), tg, Stack{Upper: "probe", Layers: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	r.Close()
	p.fail = nil
	tg.Hostname = "before"
	fresh(t, p, "again")
	if r, err = p.Attach(context.Background(), tg, Stack{Upper: "again", Layers: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	r.Close()
	mounts := table()
	if len(steps) < 6 {
		t.Fatalf("steps: %q", steps)
	}
	for _, step := range steps {
		boom := errors.New("boom")
		p.fail = func(s string) error {
			if s == step {
				return boom
			}
			return nil
		}
		tg.Hostname = "after"
		_, err := p.Attach(context.Background(), tg, Stack{Upper: "b", Layers: []string{"a"}})
		p.fail = nil
		if !errors.Is(err, boom) || strings.Contains(err.Error(), "undoing") {
			t.Fatalf("%s: %v", step, err)
		}
		if got := table(); !sameMounts(got, mounts) {
			t.Fatalf("%s: mounts are\n%s\nexpected\n%s", step, got, mounts)
		}
		mustEqual(t, step, c.snapshot(), want)
		c.do(exists("/proc/1/status"), exists("/run/cairn"), op{Kind: "hostname", Path: []byte("before")},
			create("/tmp/writable", step), remove("/tmp/writable"))
		want = c.snapshot()
	}
	tg.Hostname = "after"
	if r, err = p.Attach(context.Background(), tg, Stack{Upper: "b", Layers: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	r.Close()
	c.do(read("/file", "content"), op{Kind: "hostname", Path: []byte("after")})
}
