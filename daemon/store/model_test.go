package store

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"cairn/sandbox"
)

// model is what the store should hold, in maps.
type model struct {
	t           *rapid.T
	s           *Store
	path        string
	n, steps    int
	sandboxes   map[string]sandbox.Sandbox
	checkpoints map[string]sandbox.Checkpoint
	images      map[string]sandbox.Image
	operations  map[string]sandbox.Operation
}

var (
	someLabels = rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", `c"<&>`, "", "$.x"}), rapid.SampledFrom([]string{"", "1", "é\n", `\`}), 0, 3)
	someLayers = rapid.SliceOfN(rapid.SampledFrom([]string{"l1", "l2", "l3", "l4", "l5", "l6"}), 0, 4)
	oneLayer   = rapid.SampledFrom([]string{"", "l1", "l2", "l7", "l8"})
	someStates = rapid.SampledFrom([]sandbox.State{sandbox.StateRunning, sandbox.StatePaused})
)

func (m *model) id(kind string) string {
	m.n++
	return fmt.Sprintf("%s_%04d", kind, m.n)
}

// put commits one change; what fails with a code has changed nothing.
func (m *model) put(want sandbox.Code, fn func(sandbox.Tx) error) {
	err := m.s.Update(context.Background(), fn)
	if got := sandbox.CodeOf(err); got != want {
		m.t.Fatalf("got %q (%v), want %q", got, err, want)
	}
}

func pick[V any](t *rapid.T, m map[string]V) string {
	return rapid.SampledFrom(slices.Sorted(maps.Keys(m))).Draw(t, "which")
}

// The times are few, so that many things are of the same instant.
func (m *model) instant() int { return rapid.IntRange(0, 3).Draw(m.t, "time") }

func (m *model) PutSandbox(t *rapid.T) {
	sb := sandbox.Sandbox{
		ID: m.id("sbx"), Name: rapid.StringMatching("[ab]{1,3}").Draw(t, "name"), CreatedAt: at(m.instant()), State: someStates.Draw(t, "state"),
		Labels: someLabels.Draw(t, "labels"), Upper: oneLayer.Draw(t, "upper"), Identity: oneLayer.Draw(t, "identity"),
		Captured: oneLayer.Draw(t, "captured"), Base: someLayers.Draw(t, "base"), Below: someLayers.Draw(t, "below"),
	}
	if len(m.sandboxes) > 0 && rapid.Bool().Draw(t, "update") {
		old := m.sandboxes[pick(t, m.sandboxes)]
		sb.ID = old.ID
	}
	for _, other := range m.sandboxes {
		if other.Name == sb.Name && other.ID != sb.ID {
			m.put(sandbox.CodeConflict, func(tx sandbox.Tx) error { return tx.PutSandbox(sb) })
			return
		}
	}
	m.put("", func(tx sandbox.Tx) error { return tx.PutSandbox(sb) })
	m.sandboxes[sb.ID] = sb
}

func (m *model) PutCheckpoint(t *rapid.T) {
	c := sandbox.Checkpoint{
		ID: m.id("ckpt"), Name: rapid.SampledFrom([]string{"", "n", "m"}).Draw(t, "name"), CreatedAt: at(m.instant()), Labels: someLabels.Draw(t, "labels"),
		SandboxID: rapid.SampledFrom([]string{"s1", "s2"}).Draw(t, "sandbox"), Stack: someLayers.Draw(t, "stack"), Layer: oneLayer.Draw(t, "layer"),
		Images: oneLayer.Draw(t, "images"), PagesBase: oneLayer.Draw(t, "pages base"),
	}
	if len(m.checkpoints) > 0 {
		c.Parent = pick(t, m.checkpoints)
	}
	m.put("", func(tx sandbox.Tx) error { return tx.PutCheckpoint(c) })
	m.checkpoints[c.ID] = c
}

func (m *model) Relabel(t *rapid.T) {
	if len(m.checkpoints) == 0 {
		t.Skip()
	}
	id := pick(t, m.checkpoints)
	c := m.checkpoints[id]
	c.Labels = someLabels.Draw(t, "labels")
	m.put("", func(tx sandbox.Tx) error { return tx.PutCheckpoint(c) })
	m.checkpoints[id] = c
}

func (m *model) PutImage(t *rapid.T) {
	i := sandbox.Image{ID: m.id("img"), Layers: someLayers.Draw(t, "layers"), CreatedAt: at(m.instant())}
	m.put("", func(tx sandbox.Tx) error { return tx.PutImage(i) })
	m.images[i.ID] = i
}

func (m *model) PutOperation(t *rapid.T) {
	o := sandbox.Operation{ID: m.id("op"), Layers: someLayers.Draw(t, "layers"), StartedAt: at(m.instant())}
	m.put("", func(tx sandbox.Tx) error { return tx.PutOperation(o) })
	m.operations[o.ID] = o
}

func (m *model) Delete(t *rapid.T) {
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		if len(m.sandboxes) > 0 {
			id := pick(t, m.sandboxes)
			m.put("", func(tx sandbox.Tx) error { return tx.DeleteSandbox(id) })
			delete(m.sandboxes, id)
		}
	case 1:
		if len(m.checkpoints) > 0 {
			id := pick(t, m.checkpoints)
			m.put("", func(tx sandbox.Tx) error { return tx.DeleteCheckpoint(id) })
			for k, c := range m.checkpoints {
				if c.Parent == id {
					c.Parent = m.checkpoints[id].Parent
					m.checkpoints[k] = c
				}
			}
			delete(m.checkpoints, id)
		}
	case 2:
		if len(m.images) > 0 {
			id := pick(t, m.images)
			m.put("", func(tx sandbox.Tx) error { return tx.DeleteImage(id) })
			delete(m.images, id)
		}
	case 3:
		if len(m.operations) > 0 {
			id := pick(t, m.operations)
			m.put("", func(tx sandbox.Tx) error { return tx.DeleteOperation(id) })
			delete(m.operations, id)
		}
	}
}

func (m *model) Reopen(t *rapid.T) {
	if rapid.IntRange(0, 9).Draw(t, "reopen") != 0 {
		t.Skip() // it takes longer than all else together
	}
	if err := m.s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := Open(context.Background(), m.path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	m.s = s
}

// CursorUnderChange turns pages while things come and go: what was there all
// the time is seen once.
func (m *model) CursorUnderChange(t *rapid.T) {
	stays := map[string]bool{}
	for id := range m.images {
		stays[id] = true
	}
	seen := map[string]int{}
	page := sandbox.Page{Limit: rapid.IntRange(1, 3).Draw(t, "limit")}
	for {
		var l sandbox.List[sandbox.Image]
		m.look(func(tx sandbox.Tx) (err error) { l, err = tx.Images(page); return err })
		for _, i := range l.Items {
			seen[i.ID]++
		}
		if page.Cursor = l.NextCursor; page.Cursor == "" {
			break
		}
		if rapid.Bool().Draw(t, "add") {
			m.PutImage(t)
		} else {
			id := pick(t, m.images)
			m.put("", func(tx sandbox.Tx) error { return tx.DeleteImage(id) })
			delete(m.images, id)
			delete(stays, id)
		}
	}
	for id := range stays {
		if seen[id] != 1 {
			t.Fatalf("%s was listed %d times", id, seen[id])
		}
	}
}

func (m *model) look(fn func(sandbox.Tx) error) {
	if err := m.s.View(context.Background(), fn); err != nil {
		m.t.Fatal(err)
	}
}

func has(labels, want map[string]string) bool {
	for k, v := range want {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// newest sorts ids newest first.
func newest[V any](m map[string]V, keep func(V) bool, time func(V) int64) []string {
	var ids []string
	for id, v := range m {
		if keep(v) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int {
		if ta, tb := time(m[a]), time(m[b]); ta != tb {
			return int(tb - ta)
		}
		return strings.Compare(b, a)
	})
	return ids
}

// pages reads a list to its end.
func pages[T any](m *model, limit int, id func(T) string, get func(sandbox.Tx, sandbox.Page) (sandbox.List[T], error)) []string {
	var ids []string
	page := sandbox.Page{Limit: limit}
	for {
		var l sandbox.List[T]
		m.look(func(tx sandbox.Tx) (err error) { l, err = get(tx, page); return err })
		if len(l.Items) > limit {
			m.t.Fatalf("%d items, the limit is %d", len(l.Items), limit)
		}
		for _, v := range l.Items {
			ids = append(ids, id(v))
		}
		if page.Cursor = l.NextCursor; page.Cursor == "" {
			return ids
		}
	}
}

func (m *model) Check(t *rapid.T) {
	m.t = t
	// What one change breaks stays broken: looking now and then finds it too.
	if m.steps++; m.steps%4 != 0 {
		return
	}
	limit := rapid.IntRange(1, 4).Draw(t, "limit")
	sf := sandbox.SandboxFilter{Labels: someLabels.Draw(t, "labels")}
	if rapid.Bool().Draw(t, "by state") {
		sf.State = someStates.Draw(t, "state")
	}
	m.same("sandboxes", newest(m.sandboxes, func(s sandbox.Sandbox) bool {
		return (sf.State == "" || s.State == sf.State) && has(s.Labels, sf.Labels)
	}, func(s sandbox.Sandbox) int64 { return nanos(s.CreatedAt) }),
		pages(m, limit, func(s sandbox.Sandbox) string { return s.ID }, func(tx sandbox.Tx, p sandbox.Page) (sandbox.List[sandbox.Sandbox], error) {
			return tx.Sandboxes(sf, p)
		}))
	cf := sandbox.CheckpointFilter{
		Labels:    someLabels.Draw(t, "checkpoint labels"),
		SandboxID: rapid.SampledFrom([]string{"", "s1", "s2"}).Draw(t, "of"), Name: rapid.SampledFrom([]string{"", "n"}).Draw(t, "named"),
	}
	m.same("checkpoints", newest(m.checkpoints, func(c sandbox.Checkpoint) bool {
		return (cf.SandboxID == "" || c.SandboxID == cf.SandboxID) && (cf.Name == "" || c.Name == cf.Name) && has(c.Labels, cf.Labels)
	}, func(c sandbox.Checkpoint) int64 { return nanos(c.CreatedAt) }),
		pages(m, limit, func(c sandbox.Checkpoint) string { return c.ID }, func(tx sandbox.Tx, p sandbox.Page) (sandbox.List[sandbox.Checkpoint], error) {
			l, err := tx.Checkpoints(cf, p)
			for _, c := range l.Items {
				m.checkTree(c)
			}
			return l, err
		}))
	m.look(func(tx sandbox.Tx) error {
		all, err := tx.AllCheckpoints()
		if len(all) != len(m.checkpoints) {
			t.Fatalf("%d checkpoints in all, want %d", len(all), len(m.checkpoints))
		}
		for _, c := range all {
			m.checkTree(c)
		}
		return err
	})
	m.checkLayers()
}

func (m *model) checkTree(c sandbox.Checkpoint) {
	want := m.checkpoints[c.ID]
	children := newest(m.checkpoints, func(k sandbox.Checkpoint) bool { return k.Parent == c.ID }, func(k sandbox.Checkpoint) int64 { return nanos(k.CreatedAt) })
	slices.Reverse(children)
	want.Children = children
	if !reflect.DeepEqual(want, c) { // cmp is slow
		m.t.Fatalf("checkpoint (-want +got):\n%s", cmp.Diff(want, c))
	}
}

func (m *model) checkLayers() {
	want := map[string]bool{}
	for _, s := range m.sandboxes {
		for _, l := range slices.Concat(s.Base, s.Below, []string{s.Upper, s.Identity, s.Captured}) {
			want[l] = true
		}
	}
	for _, c := range m.checkpoints {
		for _, l := range append(slices.Clone(c.Stack), c.Layer, c.Images, c.PagesBase) {
			want[l] = true
		}
	}
	for _, i := range m.images {
		for _, l := range i.Layers {
			want[l] = true
		}
	}
	for _, o := range m.operations {
		for _, l := range o.Layers {
			want[l] = true
		}
	}
	delete(want, "")
	m.look(func(tx sandbox.Tx) error {
		got, err := tx.LayersInUse()
		if d := cmp.Diff(want, got); d != "" {
			m.t.Fatalf("layers in use (-want +got):\n%s", d)
		}
		return err
	})
}

func (m *model) same(what string, want, got []string) {
	if !slices.Equal(want, got) {
		m.t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// clear empties the store for the next run: cheaper than a new one.
func clear(t *rapid.T, s *Store) {
	err := s.write(context.Background(), func(c *conn) error {
		for _, table := range []string{"sandboxes", "checkpoints", "images", "operations"} {
			if _, err := c.run("DELETE FROM " + table); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestModel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cairn.db")
	s, err := Open(context.Background(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	rapid.Check(t, func(rt *rapid.T) {
		clear(rt, s)
		m := &model{
			t: rt, s: s, path: path, sandboxes: map[string]sandbox.Sandbox{},
			checkpoints: map[string]sandbox.Checkpoint{}, images: map[string]sandbox.Image{}, operations: map[string]sandbox.Operation{},
		}
		defer func() { s = m.s }()
		rt.Repeat(map[string]func(*rapid.T){
			"": m.Check, "put sandbox": m.PutSandbox, "put checkpoint": m.PutCheckpoint, "relabel": m.Relabel, "put image": m.PutImage,
			"put operation": m.PutOperation, "delete": m.Delete, "delete more": m.Delete, "reopen": m.Reopen, "turn pages": m.CursorUnderChange,
		})
	})
}

func FuzzCursor(f *testing.F) {
	f.Add(position{at: 1, id: "x"}.cursor(cursorImages))
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parseCursor(cursorImages, s)
		if err != nil {
			wantCode(t, err, sandbox.CodeInvalid)
			return
		}
		if s != "" && p.cursor(cursorImages) != s {
			t.Errorf("%q is a second spelling of %+v", s, p)
		}
	})
}
