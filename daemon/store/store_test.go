package store

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cairn/sandbox"
)

// conformance is what any sandbox.Store does.
var conformance = []struct {
	name string
	run  func(t *testing.T, s *Store)
}{
	{"what is put is got", func(t *testing.T, s *Store) {
		sb := sandbox.Sandbox{
			ID: "sbx_1", Name: "one", State: sandbox.StatePaused, ImageID: "img_1", Head: "ckpt_1", CreatedAt: at(1), UpdatedAt: at(2),
			Labels: map[string]string{"a": `q"<&>é`}, Base: []string{"l2", "l1"}, Project: 7,
			Config: sandbox.Config{Command: []string{}, Env: map[string]string{"A": "b"}, Resources: sandbox.Resources{CPUs: 0.5}},
		}
		cp := sandbox.Checkpoint{ID: "ckpt_1", Name: "n", SandboxID: "sbx_1", Stack: []string{"l1"}, CreatedAt: at(3), Timings: sandbox.Timings{FreezeMS: 1.25}}
		img := sandbox.Image{ID: "img_1", Name: "debian", Layers: []string{"i1"}, CreatedAt: at(4)}
		pr := sandbox.Process{ID: "exec_1", SandboxID: "sbx_1", Command: []string{"true"}, State: sandbox.ProcessRunning, StartedAt: at(5)}
		la := sandbox.Layer{ID: "l1", Bytes: 3, Merges: []string{"x"}, CreatedAt: at(6)}
		op := sandbox.Operation{ID: "op_1", Kind: "restore", Layers: []string{"l9"}, Data: []byte(`{"x":1}`), StartedAt: at(7)}
		update(t, s, func(tx sandbox.Tx) error {
			skipped := cp
			skipped.Skipped, skipped.Children = true, []string{"answers only"}
			return errors.Join(tx.PutSandbox(sb), tx.PutCheckpoint(skipped), tx.PutImage(img), tx.PutProcess(pr), tx.PutLayer(la), tx.PutOperation(op))
		})
		view(t, s, func(tx sandbox.Tx) error {
			got := func(v any, err error) any {
				if err != nil {
					t.Error(err)
				}
				return v
			}
			same(t, sb, must(tx.Sandbox("sbx_1")))
			same(t, sb, must(tx.Sandbox("one")))
			same(t, cp, must(tx.Checkpoint("ckpt_1")))
			same(t, img, must(tx.Image("img_1")))
			same(t, img, must(tx.Image("debian")))
			same(t, []sandbox.Process{pr}, must(tx.Processes("sbx_1")))
			same(t, pr, must(tx.Process("sbx_1", "exec_1")))
			same(t, la, must(tx.Layer("l1")))
			same(t, []sandbox.Operation{op}, must(tx.Operations()))
			same(t, any(1), got(tx.CountSandboxes()))
			return nil
		})
	}},
	{"what is not there is not found", func(t *testing.T, s *Store) {
		update(t, s, func(tx sandbox.Tx) error {
			_, e1 := tx.Sandbox("x")
			_, e2 := tx.Checkpoint("x")
			_, e3 := tx.Image("x")
			_, e4 := tx.Image("")
			_, e5 := tx.Process("x", "y")
			_, e6 := tx.Layer("x")
			for i, err := range []error{
				e1, e2, e3, e4, e5, e6, tx.DeleteSandbox("x"), tx.DeleteCheckpoint("x"), tx.DeleteImage("x"), tx.DeleteProcess("x", "y"),
				tx.PutProcess(sandbox.Process{ID: "p", SandboxID: "x"}),
			} {
				if sandbox.CodeOf(err) != sandbox.CodeNotFound {
					t.Errorf("%d: %v", i, err)
				}
			}
			return errors.Join(tx.DeleteLayer("x"), tx.DeleteOperation("x"))
		})
	}},
	{"names are unique", func(t *testing.T, s *Store) {
		update(t, s, func(tx sandbox.Tx) error {
			if err := errors.Join(tx.PutSandbox(sandbox.Sandbox{ID: "a", Name: "n"}), tx.PutImage(sandbox.Image{ID: "i", Name: "n"}),
				tx.PutImage(sandbox.Image{ID: "j"}), tx.PutImage(sandbox.Image{ID: "k"})); err != nil {
				return err
			}
			wantCode(t, tx.PutSandbox(sandbox.Sandbox{ID: "b", Name: "n"}), sandbox.CodeConflict)
			wantCode(t, tx.PutImage(sandbox.Image{ID: "l", Name: "n"}), sandbox.CodeConflict)
			wantCode(t, tx.PutImage(sandbox.Image{ID: "j", Name: "n"}), sandbox.CodeConflict)
			// A refused statement leaves the transaction as it was.
			return errors.Join(tx.PutSandbox(sandbox.Sandbox{ID: "b", Name: "m"}), tx.DeleteSandbox("a"), tx.PutSandbox(sandbox.Sandbox{ID: "c", Name: "n"}))
		})
		view(t, s, func(tx sandbox.Tx) error {
			if got := must(tx.Sandbox("n")); got.ID != "c" {
				t.Errorf("the name is that of %s", got.ID)
			}
			return nil
		})
	}},
	{"an error rolls back", func(t *testing.T, s *Store) {
		mine := errors.New("mine")
		err := s.Update(context.Background(), func(tx sandbox.Tx) error {
			if err := tx.PutLayer(sandbox.Layer{ID: "l"}); err != nil {
				return err
			}
			return mine
		})
		if err != mine { //nolint:errorlint // the very error
			t.Errorf("the error came back as %v", err)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_ = s.Update(context.Background(), func(tx sandbox.Tx) error {
				if err := tx.PutLayer(sandbox.Layer{ID: "l"}); err != nil {
					t.Error(err)
				}
				panic("oh")
			})
		}()
		view(t, s, func(tx sandbox.Tx) error {
			_, err := tx.Layer("l")
			wantCode(t, err, sandbox.CodeNotFound)
			return nil
		})
	}},
	{"a view changes nothing and sees one state", func(t *testing.T, s *Store) {
		update(t, s, func(tx sandbox.Tx) error { return tx.PutLayer(sandbox.Layer{ID: "l", Bytes: 1}) })
		view(t, s, func(tx sandbox.Tx) error {
			if err := tx.PutLayer(sandbox.Layer{ID: "m"}); err == nil {
				t.Error("a view could write")
			}
			if must(tx.Layer("l")).Bytes != 1 {
				t.Error("not the committed state")
			}
			update(t, s, func(tx sandbox.Tx) error { return tx.PutLayer(sandbox.Layer{ID: "l", Bytes: 2}) })
			if must(tx.Layer("l")).Bytes != 1 {
				t.Error("the state changed under the view")
			}
			return nil
		})
		view(t, s, func(tx sandbox.Tx) error {
			if must(tx.Layer("l")).Bytes != 2 {
				t.Error("a new view sees an old state")
			}
			return nil
		})
	}},
	{"deleting a checkpoint hands its children on", func(t *testing.T, s *Store) {
		update(t, s, func(tx sandbox.Tx) error {
			for i, p := range []string{"", "c0", "c1", "c1", "c3"} {
				if err := tx.PutCheckpoint(sandbox.Checkpoint{ID: fmt.Sprint("c", i), Parent: p, CreatedAt: at(i)}); err != nil {
					return err
				}
			}
			same(t, []string{"c2", "c3"}, must(tx.Checkpoint("c1")).Children)
			if err := tx.DeleteCheckpoint("c1"); err != nil {
				return err
			}
			same(t, []string{"c2", "c3"}, must(tx.Checkpoint("c0")).Children)
			same(t, "c0", must(tx.Checkpoint("c3")).Parent)
			if err := tx.DeleteCheckpoint("c0"); err != nil {
				return err
			}
			same(t, "", must(tx.Checkpoint("c2")).Parent)
			all := must(tx.AllCheckpoints())
			if len(all) != 3 || all[0].ID != "c2" || len(all[1].Children) != 1 || all[1].Children[0] != "c4" {
				t.Errorf("all: %+v", all)
			}
			return nil
		})
	}},
	{"an image in use stays", func(t *testing.T, s *Store) {
		update(t, s, func(tx sandbox.Tx) error {
			if err := errors.Join(tx.PutImage(sandbox.Image{ID: "i"}), tx.PutSandbox(sandbox.Sandbox{ID: "s", Name: "s", ImageID: "i"}),
				tx.PutCheckpoint(sandbox.Checkpoint{ID: "c", ImageID: "i"})); err != nil {
				return err
			}
			wantCode(t, tx.DeleteImage("i"), sandbox.CodeInUse)
			if err := tx.DeleteSandbox("s"); err != nil {
				return err
			}
			wantCode(t, tx.DeleteImage("i"), sandbox.CodeInUse)
			return errors.Join(tx.DeleteCheckpoint("c"), tx.DeleteImage("i"))
		})
	}},
	{"processes go with their sandbox", func(t *testing.T, s *Store) {
		update(t, s, func(tx sandbox.Tx) error {
			if err := errors.Join(tx.PutSandbox(sandbox.Sandbox{ID: "s", Name: "s"}), tx.PutProcess(sandbox.Process{ID: "p", SandboxID: "s"}),
				tx.DeleteSandbox("s"), tx.PutSandbox(sandbox.Sandbox{ID: "s", Name: "s"})); err != nil {
				return err
			}
			if l := must(tx.Processes("s")); len(l) != 0 {
				t.Errorf("left: %v", l)
			}
			return nil
		})
	}},
	{"cursors of elsewhere are refused", func(t *testing.T, s *Store) {
		update(t, s, func(tx sandbox.Tx) error {
			for i := range 3 {
				if err := tx.PutImage(sandbox.Image{ID: fmt.Sprint(i), CreatedAt: at(i)}); err != nil {
					return err
				}
			}
			l := must(tx.Images(sandbox.Page{Limit: 1}))
			for _, c := range []string{l.NextCursor, "x", "====", strings.Repeat("A", 5000), l.NextCursor[1:]} {
				_, err := tx.Sandboxes(sandbox.SandboxFilter{}, sandbox.Page{Cursor: c})
				wantCode(t, err, sandbox.CodeInvalid)
				var e *sandbox.Error
				if !errors.As(err, &e) || e.Field != "cursor" {
					t.Errorf("the error does not name the field: %v", err)
				}
			}
			return nil
		})
	}},
	{"events are numbered", func(t *testing.T, s *Store) {
		view(t, s, func(tx sandbox.Tx) error { same(t, 0, must(tx.LastEvent())); return nil })
		for i := range 3 {
			update(t, s, func(tx sandbox.Tx) error {
				e := must(tx.AppendEvent(sandbox.Event{Subject: fmt.Sprint(i), Data: map[string]any{"n": "v"}}))
				same(t, int64(i+1), e.Seq)
				return nil
			})
		}
		view(t, s, func(tx sandbox.Tx) error {
			l := must(tx.Events(1, 1))
			if len(l) != 1 || l[0].Seq != 2 || l[0].Subject != "1" || l[0].Data["n"] != "v" {
				t.Errorf("events: %+v", l)
			}
			same(t, 3, must(tx.LastEvent()))
			return nil
		})
	}},
	{"projects are new each time", func(t *testing.T, s *Store) {
		seen := map[uint32]bool{0: true}
		for range 3 {
			update(t, s, func(tx sandbox.Tx) error {
				for range 3 {
					if n := must(tx.NextProject()); seen[n] {
						t.Errorf("%d again", n)
					} else {
						seen[n] = true
					}
				}
				return nil
			})
		}
	}},
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func same[T any](t *testing.T, want, got T) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestConformance(t *testing.T) {
	for _, c := range conformance {
		t.Run(c.name, func(t *testing.T) { c.run(t, temp(t, Options{})) })
	}
}

func TestContextAndClose(t *testing.T) {
	s := temp(t, Options{Readers: 1})
	ctx, cancel := context.WithCancel(context.Background())
	hold, held := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		update(t, s, func(sandbox.Tx) error { close(held); <-hold; return nil })
	})
	<-held
	wg.Go(func() {
		err := s.Update(ctx, func(sandbox.Tx) error { t.Error("it ran"); return nil })
		if sandbox.CodeOf(err) != sandbox.CodeCancelled {
			t.Errorf("a cancelled wait gave %v", err)
		}
	})
	cancel()
	close(hold)
	wg.Wait()
	wantCode(t, s.View(ctx, func(sandbox.Tx) error { return nil }), sandbox.CodeCancelled)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	bg := context.Background()
	wantCode(t, s.Update(bg, func(sandbox.Tx) error { return nil }), sandbox.CodeUnavailable)
	wantCode(t, s.View(bg, func(sandbox.Tx) error { return nil }), sandbox.CodeUnavailable)
	wantCode(t, s.Sync(bg), sandbox.CodeUnavailable)
}

func TestTrimming(t *testing.T) {
	s := temp(t, Options{KeepEvents: 100, KeepProcesses: 10})
	update(t, s, func(tx sandbox.Tx) error { return tx.PutSandbox(sandbox.Sandbox{ID: "s", Name: "s"}) })
	for i := range 500 {
		update(t, s, func(tx sandbox.Tx) error {
			state := sandbox.ProcessExited
			if i%50 == 0 {
				state = sandbox.ProcessRunning
			}
			if err := tx.PutProcess(sandbox.Process{ID: fmt.Sprint(i), SandboxID: "s", State: state, StartedAt: at(i)}); err != nil {
				return err
			}
			_, err := tx.AppendEvent(sandbox.Event{})
			return err
		})
	}
	view(t, s, func(tx sandbox.Tx) error {
		running, finished := 0, 0
		for _, p := range must(tx.Processes("s")) {
			if p.State == sandbox.ProcessRunning {
				running++
			} else {
				finished++
			}
		}
		if running != 10 || finished < 10 || finished > 10+trimEvery {
			t.Errorf("%d running and %d finished processes are left", running, finished)
		}
		if p := must(tx.Processes("s")); p[0].ID != "499" {
			t.Errorf("the newest is %s", p[0].ID)
		}
		events := must(tx.Events(0, 1000))
		if n := len(events); n < 100 || n > 100+trimEvery || events[n-1].Seq != 500 {
			t.Errorf("%d events are left", n)
		}
		return nil
	})
}

func TestIdempotency(t *testing.T) {
	now := epoch
	path := filepath.Join(t.TempDir(), "cairn.db")
	s := open(t, path, Options{Now: func() time.Time { return now }})
	ctx := context.Background()
	reserve := func(scope, key string) (*IdemRecord, bool) {
		t.Helper()
		rec, fresh, err := s.Reserve(ctx, scope, key, "hash")
		if err != nil {
			t.Fatal(err)
		}
		return rec, fresh
	}
	if _, fresh := reserve("a", "k"); !fresh {
		t.Error("a new key is not free")
	}
	if _, fresh := reserve("b", "k"); !fresh {
		t.Error("another scope's key is not free")
	}
	rec, fresh := reserve("a", "k")
	if fresh || rec.Status != 0 || rec.RequestHash != "hash" {
		t.Errorf("a key in use: %v, %+v", fresh, rec)
	}
	if err := s.Release(ctx, "b", "k"); err != nil {
		t.Fatal(err)
	}
	if _, fresh := reserve("b", "k"); !fresh {
		t.Error("a released key is not free")
	}
	want := &IdemRecord{RequestHash: "hash", Status: 201, Header: http.Header{"A": {"b", "c"}}, Body: []byte("body\x00")}
	if err := s.Complete(ctx, "a", "k", want.Status, want.Header, want.Body); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(ctx, "a", "k"); err != nil {
		t.Fatal(err)
	}
	rec, fresh = reserve("a", "k")
	if fresh {
		t.Error("a completed key is free")
	}
	same(t, want, rec)
	wantCode(t, s.Complete(ctx, "a", "never", 200, nil, nil), sandbox.CodeNotFound)

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, Options{Now: func() time.Time { return now }})
	if _, fresh = reserve("b", "k"); !fresh {
		t.Error("what a former daemon was at is not released")
	}
	if rec, fresh = reserve("a", "k"); fresh || rec.Status != 201 {
		t.Error("a completed answer was forgotten")
	}
	now = now.Add(24*time.Hour + time.Second)
	if _, fresh = reserve("a", "k"); !fresh {
		t.Error("an expired key is not free")
	}
}

func TestConcurrency(t *testing.T) {
	s := temp(t, Options{LogBytes: 64 << 10})
	ctx := context.Background()
	var wg sync.WaitGroup
	const writers, each = 8, 60
	for w := range writers {
		wg.Go(func() {
			for range each {
				if err := s.Update(ctx, func(tx sandbox.Tx) error {
					l, err := tx.Layer("counter")
					if sandbox.CodeOf(err) != sandbox.CodeNotFound && err != nil {
						return err
					}
					l.ID, l.Bytes = "counter", l.Bytes+1
					_, err = tx.AppendEvent(sandbox.Event{Subject: fmt.Sprint(w)})
					return errors.Join(err, tx.PutLayer(l))
				}); err != nil {
					t.Error(err)
				}
				if err := s.Sync(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 4 {
		wg.Go(func() {
			for range each {
				if err := s.View(ctx, func(tx sandbox.Tx) error {
					l, err := tx.Layer("counter")
					last, err2 := tx.LastEvent()
					if err == nil && l.Bytes != last {
						t.Errorf("torn: %d counted, %d events", l.Bytes, last)
					}
					return err2
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	view(t, s, func(tx sandbox.Tx) error {
		same(t, writers*each, must(tx.Layer("counter")).Bytes)
		return nil
	})
}

func TestLogStaysBounded(t *testing.T) {
	const limit = 256 << 10
	s := temp(t, Options{LogBytes: limit})
	for i := range 3000 {
		update(t, s, func(tx sandbox.Tx) error {
			return tx.PutLayer(sandbox.Layer{ID: fmt.Sprint(i % 100), Digest: strings.Repeat("x", 1000)})
		})
	}
	if n := size(s.path + "-wal"); n > 9*limit {
		t.Errorf("the log has grown to %d bytes", n)
	}
}
