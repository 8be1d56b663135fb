package overlay

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// A checkpoint as the model knows it: a stack and what the tree was like.
type modelled struct {
	layers []string
	tree   snapshot
}

type machine struct {
	t    *testing.T
	p    *Pool
	c    *container
	n    int // for ids
	head modelled
	// upper is attached over head.layers; capture is its last capture.
	upper   string
	capture string
	all     []modelled
	sealed  map[string]string
}

func (m *machine) id(prefix string) string {
	m.n++
	return fmt.Sprintf("%s%d", prefix, m.n)
}

func (m *machine) restart(layers []string) {
	m.upper, m.capture = fresh(m.t, m.p, m.id("u")), ""
	m.c.attach(m.p, m.upper, layers...)
	m.head.layers = layers
}

// TestRandomHistory drives random changes, checkpoints, captures, restores,
// forks and squashes through attached overlays. Every tree must come back as
// it was, and every diff must be what two full walks say.
//
// -rapid.checks says how many histories; fewer than usual if it isn't given,
// since each takes a good part of a second.
func TestRandomHistory(t *testing.T) {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		if err := f.Value.Set("20"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := f.Value.Set(f.DefValue); err != nil {
				t.Error(err)
			}
		})
	}
	onEach(t, func(t *testing.T, p *Pool) {
		runs := 0
		rapid.Check(t, func(r *rapid.T) {
			runs++
			m := &machine{t: t, p: p, c: startContainer(t, p, 300000), n: runs * 10000, sealed: map[string]string{}}
			defer m.c.stop()
			m.restart(nil)
			actions := map[string]func(*rapid.T){
				"change":     m.change,
				"checkpoint": m.checkpoint,
				"step":       func(r *rapid.T) { m.change(r); m.checkpoint(r) },
				"another":    func(r *rapid.T) { m.change(r); m.checkpoint(r) },
				"take":       m.take,
				"restore":    m.restore,
				"fork":       m.fork,
				"squash":     m.squash,
				"seal":       m.seal,
				"diff":       m.diff,
			}
			r.Repeat(actions)
		})
	})
}

func drawPath(r *rapid.T, label string) string {
	elem := rapid.SampledFrom([]string{"a", "a", "a", "b", "b", "b", "c", "n\n l", "\xff=\\"})
	n := rapid.IntRange(1, 3).Draw(r, label+" depth")
	path := ""
	for range n {
		path += "/" + elem.Draw(r, label)
	}
	return rapid.SampledFrom([]string{"/w", "/w", "/w", ""}).Draw(r, label+" top") + path
}

func drawOp(r *rapid.T) op {
	kinds := []string{
		"create", "create", "create", "write", "append", "truncate", "mkdirall", "mkdirall", "rename", "rename", "link",
		"link", "symlink", "chmod", "chown", "setxattr", "removexattr", "mkfifo", "mksock", "remove", "remove", "utimes", "retype", "deep",
	}
	o := op{Kind: rapid.SampledFrom(kinds).Draw(r, "op"), Path: []byte(drawPath(r, "path"))}
	switch o.Kind {
	case "create", "append", "setxattr":
		o.Data = rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(r, "data")
		o.To = []byte("user.k" + rapid.StringMatching("[a-c]").Draw(r, "key"))
	case "write":
		o.Data = rapid.SliceOfN(rapid.Byte(), 1, 16).Draw(r, "data")
		o.Off = rapid.Int64Range(0, 3<<20).Draw(r, "offset")
	case "truncate":
		o.Off = rapid.Int64Range(0, 1<<20).Draw(r, "size")
	case "removexattr":
		o.To = []byte("user.k" + rapid.StringMatching("[a-c]").Draw(r, "key"))
	case "rename", "link", "symlink":
		o.To = []byte(drawPath(r, "to"))
	case "chmod":
		o.Mode = uint32(rapid.IntRange(0, 0o7777).Draw(r, "mode"))
		if rapid.IntRange(0, 9).Draw(r, "the root") == 0 {
			o.Path, o.Mode = []byte("/"), 0o755|o.Mode&0o2022
		}
	case "chown":
		o.UID, o.GID = rapid.IntRange(0, 65535).Draw(r, "uid"), rapid.IntRange(0, 65535).Draw(r, "gid")
	case "utimes":
		o.Off = rapid.Int64Range(0, 2e9).Draw(r, "time")
	}
	return o
}

func expand(o op) []op {
	switch o.Kind {
	case "retype":
		return []op{{Kind: "remove", Path: o.Path}, {Kind: "mkdir", Path: o.Path}, {Kind: "create", Path: append(slices.Clone(o.Path), "/in"...)}}
	case "deep":
		return []op{{Kind: "mkdirall", Path: append(slices.Clone(o.Path), strings.Repeat("/deep", 40)...)}}
	}
	// Most things need a parent; what is no directory stays in the way.
	switch o.Kind {
	case "create", "symlink", "mkfifo", "mksock":
		return []op{{Kind: "mkdirall", Path: []byte(filepath.Dir(string(o.Path)))}, o}
	case "rename", "link":
		return []op{{Kind: "mkdirall", Path: []byte(filepath.Dir(string(o.To)))}, o}
	}
	return []op{o}
}

func (m *machine) change(r *rapid.T) {
	var ops []op
	for range rapid.IntRange(1, 16).Draw(r, "number of operations") {
		ops = append(ops, expand(drawOp(r))...)
	}
	m.c.ask(request{Ops: ops})
}

func (m *machine) keep(c modelled) {
	m.all = append(m.all, c)
	m.head = c
}

// checkpoint switches to a new upper.
func (m *machine) checkpoint(r *rapid.T) {
	tree := m.c.snapshot()
	empty, err := m.p.Empty(m.upper)
	if err != nil {
		r.Fatal(err)
	}
	if empty {
		// Times of "/" are all that may differ.
		delete(tree, ".")
		was := viewed(m.t, m.p, m.head.layers)
		delete(was, ".")
		if d := unlike(tree, was); d != "" {
			r.Fatalf("empty, but:%s", d)
		}
		return
	}
	if len(m.head.layers) > 40 {
		m.restart(m.head.layers[len(m.head.layers)-5:])
		return
	}
	c := modelled{append([]string{m.upper}, m.head.layers...), tree}
	m.restart(c.layers)
	m.keep(c)
	m.same(r, "after a checkpoint", m.c.snapshot(), tree)
	m.same(r, "view", viewed(m.t, m.p, c.layers), tree)
}

// take captures the upper and goes on with it.
func (m *machine) take(r *rapid.T) {
	ctx := context.Background()
	id := m.id("c")
	taking, err := m.p.StartCapture(ctx, m.upper, id, m.capture)
	if err != nil {
		r.Fatal(err)
	}
	defer taking.Close()
	if rapid.Bool().Draw(r, "change during the capture") {
		m.change(r)
	}
	tree := m.c.snapshot()
	if _, err := taking.Finish(ctx); err != nil {
		r.Fatal(err)
	}
	stats, err := taking.Commit(ctx)
	if err != nil {
		r.Fatal(err)
	}
	if stats.Unchanged {
		m.same(r, "unchanged capture", viewed(m.t, m.p, append([]string{m.capture}, m.head.layers...)), tree)
		return
	}
	m.capture = id
	c := modelled{append([]string{id}, m.head.layers...), tree}
	m.all = append(m.all, c)
	m.same(r, "capture", viewed(m.t, m.p, c.layers), tree)
	m.same(r, "after a capture", m.c.snapshot(), tree)
}

func (m *machine) draw(r *rapid.T, label string) (int, bool) {
	if len(m.all) == 0 {
		return 0, false
	}
	return rapid.IntRange(0, len(m.all)-1).Draw(r, label), true
}

func (m *machine) restore(r *rapid.T) {
	i, ok := m.draw(r, "checkpoint")
	if !ok {
		return
	}
	m.head = m.all[i]
	m.restart(m.head.layers)
	m.same(r, "restored", m.c.snapshot(), m.head.tree)
}

// fork attaches a checkpoint under a container with another range.
func (m *machine) fork(r *rapid.T) {
	i, ok := m.draw(r, "checkpoint")
	if !ok {
		return
	}
	c := startContainer(m.t, m.p, 900000)
	defer c.stop()
	c.attach(m.p, fresh(m.t, m.p, m.id("f")), m.all[i].layers...)
	m.same(r, "forked", c.snapshot(), m.all[i].tree)
}

func (m *machine) squash(r *rapid.T) {
	i, ok := m.draw(r, "checkpoint")
	if !ok {
		return
	}
	ls := m.all[i].layers
	from := rapid.IntRange(0, len(ls)-1).Draw(r, "from")
	to := rapid.IntRange(from, len(ls)-1).Draw(r, "to") + 1
	id := m.id("s")
	if err := m.p.Squash(context.Background(), id, ls[from:to], ls[to:]); err != nil {
		r.Fatal(err)
	}
	m.all[i].layers = slices.Concat(ls[:from], []string{id}, ls[to:])
	m.same(r, "squashed", viewed(m.t, m.p, m.all[i].layers), m.all[i].tree)
}

func (m *machine) seal(r *rapid.T) {
	i, ok := m.draw(r, "checkpoint")
	if !ok {
		return
	}
	for _, id := range m.all[i].layers {
		digest, ok := m.sealed[id]
		if !ok {
			s, err := m.p.Seal(context.Background(), id)
			if err != nil {
				r.Fatal(err)
			}
			digest = s.Digest
			m.sealed[id] = digest
		}
		if err := m.p.Verify(context.Background(), id, digest); err != nil {
			r.Fatal(err)
		}
	}
}

func (m *machine) diff(r *rapid.T) {
	i, ok := m.draw(r, "a")
	if !ok {
		return
	}
	j, _ := m.draw(r, "b")
	a, b := m.all[i], m.all[j]
	var got []string
	err := m.p.Diff(context.Background(), a.layers, b.layers, func(c Change) error {
		got = append(got, fmt.Sprintf("%q %s", c.Path, c.Kind))
		return nil
	})
	if err != nil {
		r.Fatal(err)
	}
	want := naiveDiff(a.tree, b.tree)
	sort.Strings(got)
	if !slices.Equal(got, want) {
		r.Fatalf("diff is\n%s\nexpected\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// naiveDiff compares two trees path by path.
func naiveDiff(a, b snapshot) []string {
	var all []string
	add := func(path string, k Kind) {
		path = strings.TrimPrefix(path, "./")
		all = append(all, fmt.Sprintf("%q %s", path, k))
	}
	for path, x := range a {
		y, ok := b[path]
		if !ok {
			add(path, Deleted)
			continue
		}
		xf, yf := parts(x), parts(y)
		switch {
		case xf.typ != yf.typ:
			add(path, TypeChanged)
		case xf.content != yf.content:
			add(path, Modified)
		case xf.mode != yf.mode:
			add(path, ModeChanged)
		case xf.owner != yf.owner || xf.xattrs != yf.xattrs:
			add(path, MetadataChanged)
		}
	}
	for path := range b {
		if _, ok := a[path]; !ok {
			add(path, Added)
		}
	}
	sort.Strings(all)
	return all
}

type parted struct {
	typ, mode              uint32
	owner, content, xattrs string
}

// parts takes a snapshot's line apart.
func parts(line string) parted {
	var p parted
	f := strings.Split(line, " ")
	mode, err := strconv.ParseUint(f[0], 8, 32)
	if err != nil {
		panic(err) // take wrote it
	}
	p.typ, p.mode, p.owner = uint32(mode)&unix.S_IFMT, uint32(mode)&0o7777, f[1]
	for _, s := range f[3:] {
		switch {
		case strings.HasPrefix(s, "same="):
			return p
		case strings.HasPrefix(s, "user.") || strings.HasPrefix(s, "security."):
			p.xattrs += s
		default:
			p.content += " " + s
		}
	}
	return p
}

func (m *machine) same(r *rapid.T, what string, got, want snapshot) {
	if d := unlike(got, want); d != "" {
		r.Fatalf("%s:%s", what, d)
	}
}
