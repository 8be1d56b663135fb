package e2e

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cairn/api/client"
	"cairn/api/types"

	"pgregory.net/rapid"
)

// TestHistories drives random operations, checkpoints, restores, forks,
// deletions and restarts, and compares every tree with an oracle.
// CAIRN_PROPERTY_RUNS says how many histories; rapid's own flags go before it.
func TestHistories(t *testing.T) {
	limitRapid(t)
	t.Run("ext4", func(t *testing.T) {
		t.Parallel()
		histories(t, options{warm: 2, maxDepth: 2})
	})
	t.Run("xfs", func(t *testing.T) {
		t.Parallel()
		histories(t, options{warm: 2, maxDepth: 2, pool: xfs(t, "1G")})
	})
}

// limitRapid gives rapid's flags the defaults of this test, unless they are given.
func limitRapid(t *testing.T) {
	t.Helper()
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	runs := "6"
	if n := os.Getenv("CAIRN_PROPERTY_RUNS"); n != "" {
		runs = n
	}
	for name, value := range map[string]string{"rapid.checks": runs, "rapid.steps": "40", "rapid.nofailfile": "true", "rapid.shrinktime": "20s"} {
		if !given[name] {
			if err := flag.Set(name, value); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func histories(t *testing.T, o options) {
	h := newHost(t, o)
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		n++
		s := &story{h: h, dir: filepath.Join(h.base, fmt.Sprintf("o%d", n)), checkpoints: map[string]moment{}, running: map[string]*twin{}}
		defer func() {
			if r.Failed() {
				r.Logf("the daemon says: %s", h.log.tail())
			}
			if h.dead() {
				h.start()
			}
			h.deleteAll()
			if err := os.RemoveAll(s.dir); err != nil {
				t.Error(err)
			}
		}()
		done(r, os.Mkdir(s.dir, 0o711))
		s.begin(r)
		actions := map[string]func(*rapid.T){
			"checkpoint while writing": s.checkpointWriting, "checkpoint while idle": s.checkpointIdle,
			"fork": s.fork, "fork now": s.forkNow, "delete checkpoint": s.deleteCheckpoint,
			"delete sandbox": s.deleteSandbox, "restart": s.restart, "crash": s.crash, "stop": s.stopped,
			"browse": s.browse, "diff": s.diff, "verify": s.verify,
		}
		for i := range 4 { // what is done more often
			actions[fmt.Sprint("change ", i)] = s.change
			actions[fmt.Sprint("change and checkpoint ", i)] = func(r *rapid.T) { s.change(r); s.checkpoint(r) }
			actions[fmt.Sprint("restore ", i%2)] = s.restore
		}
		r.Repeat(actions)
		s.all(r)
	})
}

// story is one random history.
type story struct {
	h           *host
	dir         string
	n           int
	checkpoints map[string]moment // those that exist
	running     map[string]*twin  // sandboxes
}

// moment is what a checkpoint must hold.
type moment struct {
	o    oracle
	tree tree
}

// twin is a sandbox and the oracle that has the same files.
type twin struct {
	id string
	o  oracle
}

func (s *story) newDir() string {
	s.n++
	return filepath.Join(s.dir, fmt.Sprint(s.n))
}

func (s *story) begin(r *rapid.T) {
	sb := ok(s.h.create(types.CreateSandbox{}))(r)
	ok(s.h.sh(sb.Id, "mkdir "+worked))(r)
	s.running[sb.Id] = &twin{sb.Id, newOracle(r, s.newDir())}
}

// some draws a sandbox.
func (s *story) some(r *rapid.T) *twin {
	if len(s.running) == 0 {
		s.begin(r)
	}
	return s.running[rapid.SampledFrom(slices.Sorted(maps.Keys(s.running))).Draw(r, "sandbox")]
}

// past draws a checkpoint; it skips the action when there is none.
func (s *story) past(r *rapid.T, label string) (string, moment) {
	if len(s.checkpoints) == 0 {
		r.Skip("no checkpoint yet")
	}
	id := rapid.SampledFrom(slices.Sorted(maps.Keys(s.checkpoints))).Draw(r, label)
	return id, s.checkpoints[id]
}

func (s *story) change(r *rapid.T) {
	w, ops := s.some(r), drawOps(r)
	s.do(r, w, ops)
}

// do does the operations inside, and those that succeeded to the oracle.
func (s *story) do(r *rapid.T, w *twin, ops []agentOp) {
	r.Helper()
	errs := s.h.inside(r, w.id, agentRequest{Ops: ops}).Errors
	var same []agentOp
	for i, e := range errs {
		switch e {
		case "":
			same = append(same, ops[i])
		// EXDEV: overlayfs does not rename directories that have a part below.
		case "ENOENT", "EEXIST", "ENOTDIR", "EISDIR", "ENOTEMPTY", "EINVAL", "EXDEV", "ENODATA", "EPERM", "ELOOP", "ENAMETOOLONG", "EBUSY":
		default:
			r.Fatalf("%+v: %s", ops[i], e)
		}
	}
	for i, e := range w.o.run(r, agentRequest{Ops: same}).Errors {
		if e != "" {
			r.Fatalf("only in the sandbox %+v succeeds: %s", same[i], e)
		}
	}
}

// taken records a checkpoint that holds what the oracle has now.
func (s *story) taken(r *rapid.T, w *twin, cp types.Checkpoint) {
	r.Helper()
	now := w.o.list(r)
	if was, known := s.checkpoints[cp.Id]; known {
		if d := unlike(was.tree, now); d != "" || !cp.Skipped {
			r.Fatalf("the head was given for a sandbox that is not like it:%s", d)
		}
		return
	}
	s.same(r, "the sandbox after a checkpoint", s.h.list(r, w.id), now)
	s.checkpoints[cp.Id] = moment{w.o.copyTo(r, s.newDir()), now}
	if cp.Method == types.Switch {
		w.o.freeze(r)
	}
}

func (s *story) same(r *rapid.T, what string, got, want tree) {
	r.Helper()
	if d := unlike(got, want); d != "" {
		r.Fatalf("%s:%s", what, d)
	}
}

func (s *story) checkpoint(r *rapid.T) {
	w := s.some(r)
	c := types.CreateCheckpoint{}
	if rapid.Bool().Draw(r, "durable") {
		c.Wait = ptr(types.CreateCheckpointWait("durable"))
	}
	cp := ok(s.h.checkpointAs(w.id, c))(r)
	if !cp.Skipped && cp.Method != types.Switch {
		r.Fatalf("a quiescent sandbox was captured by %s", cp.Method)
	}
	s.taken(r, w, cp)
}

// checkpointWriting does it while a process has a file open for writing, which
// then goes on writing.
func (s *story) checkpointWriting(r *rapid.T) {
	w := s.some(r)
	held := agentOp{Kind: "create", Path: []byte(worked + "/held")}
	s.do(r, w, []agentOp{{Kind: "remove", Path: held.Path}, held})
	p := s.h.play(r, w.id, "writer", string(held.Path))
	s.step(r, w, p, held.Path, "first")
	for range 2 {
		cp := ok(s.h.checkpoint(w.id))(r)
		if !cp.Skipped && cp.Method != types.Copy {
			r.Fatalf("a sandbox that writes was captured by %s", cp.Method)
		}
		s.taken(r, w, cp)
		s.step(r, w, p, held.Path, "more")
	}
	s.end(r, w, p)
}

// checkpointIdle does it while a process lives that forbids no switch.
func (s *story) checkpointIdle(r *rapid.T) {
	w := s.some(r)
	p := s.h.play(r, w.id, "idle", worked+"/idle")
	s.do(r, w, []agentOp{{Kind: "remove", Path: []byte(worked + "/idle")}, {Kind: "create", Path: []byte(worked + "/idle")}})
	cp := ok(s.h.checkpoint(w.id))(r)
	if cp.Method != types.Switch {
		r.Fatalf("an idle sandbox was captured by %s", cp.Method)
	}
	s.taken(r, w, cp)
	s.step(r, w, p, []byte(worked+"/idle"), "after")
	s.end(r, w, p)
}

// step has a process append to a file, and the oracle too.
func (s *story) step(r *rapid.T, w *twin, p types.Process, path []byte, text string) {
	r.Helper()
	was := strings.Count(ok(s.h.output(w.id, p.Id))(r), "\n")
	done(r, s.h.stdin(w.id, p.Id, text+"\n"))
	eventually(r, "the process has written", func() bool { return strings.Count(ok(s.h.output(w.id, p.Id))(r), "\n") > was })
	if out := ok(s.h.output(w.id, p.Id))(r); !strings.HasSuffix(out, "ok\n") {
		r.Fatalf("the process says %q", out)
	}
	w.o.run(r, agentRequest{Ops: []agentOp{{Kind: "append", Path: path, Data: []byte(text)}}})
}

func (s *story) end(r *rapid.T, w *twin, p types.Process) {
	r.Helper()
	done(r, s.h.signal(w.id, p.Id, "KILL"))
	ok(s.h.waitProcess(w.id, p.Id))(r)
}

func (s *story) restore(r *rapid.T) {
	w := s.some(r)
	id, m := s.past(r, "checkpoint")
	was := w.o.list(r)
	res := ok(s.h.restore(w.id, id))(r)
	s.same(r, "restored", s.h.list(r, w.id), m.tree)
	if res.Undo != "" {
		s.checkpoints[res.Undo] = moment{w.o.copyTo(r, s.newDir()), was}
	}
	w.o = m.o.copyTo(r, s.newDir())
	w.o.freeze(r)
}

const mostSandboxes = 4

func (s *story) adopt(r *rapid.T, sb types.Sandbox, m moment) {
	r.Helper()
	s.same(r, "forked", s.h.list(r, sb.Id), m.tree)
	w := &twin{sb.Id, m.o.copyTo(r, s.newDir())}
	w.o.freeze(r)
	s.running[sb.Id] = w
}

func (s *story) fork(r *rapid.T) {
	if len(s.running) >= mostSandboxes {
		r.Skip("enough sandboxes")
	}
	id, m := s.past(r, "checkpoint")
	s.adopt(r, ok(s.h.fork(id))(r), m)
}

func (s *story) forkNow(r *rapid.T) {
	if len(s.running) >= mostSandboxes {
		r.Skip("enough sandboxes")
	}
	w := s.some(r)
	child := ok(s.h.forkNow(w.id))(r)
	cp := ok(s.h.getCheckpoint(child.ForkedFrom))(r)
	_, known := s.checkpoints[cp.Id]
	cp.Skipped = known
	s.taken(r, w, cp)
	s.adopt(r, child, s.checkpoints[cp.Id])
}

func (s *story) deleteCheckpoint(r *rapid.T) {
	id, m := s.past(r, "checkpoint")
	done(r, s.h.deleteCheckpoint(id))
	delete(s.checkpoints, id)
	done(r, os.RemoveAll(m.o.dir))
}

func (s *story) deleteSandbox(r *rapid.T) {
	w := s.some(r)
	done(r, s.h.remove(w.id))
	delete(s.running, w.id)
}

// restart and crash end the daemon; sandboxes must be as they were.
func (s *story) restart(r *rapid.T) { s.h.stop(); s.again(r) }
func (s *story) crash(r *rapid.T)   { s.h.kill(); s.again(r) }

func (s *story) again(r *rapid.T) {
	r.Helper()
	done(r, s.h.tryStart())
	for _, w := range s.running {
		s.same(r, "after a restart", s.h.list(r, w.id), w.o.list(r))
	}
}

// stopped kills a sandbox's first process and brings the sandbox back.
func (s *story) stopped(r *rapid.T) {
	w := s.some(r)
	s.h.killFirst(r, w.id)
	if rapid.Bool().Draw(r, "checkpoint while stopped") {
		cp := ok(s.h.checkpoint(w.id))(r)
		ok(s.h.resume(w.id))(r)
		s.taken(r, w, cp)
	} else {
		ok(s.h.resume(w.id))(r)
	}
	s.same(r, "resumed", s.h.list(r, w.id), w.o.list(r))
}

func (s *story) browse(r *rapid.T) {
	id, m := s.past(r, "checkpoint")
	s.browsed(r, id, m)
}

func (s *story) browsed(r *rapid.T, id string, m moment) {
	r.Helper()
	var got tree
	err := s.h.checkpointTar(id, worked, func(body io.Reader) (err error) { got, err = treeInTar(body); return err })
	done(r, err)
	s.same(r, "browsed", got, m.tree)
}

func (s *story) diff(r *rapid.T) {
	from, a := s.past(r, "from")
	to, b := s.past(r, "to")
	var got []string
	for _, c := range ok(s.h.diff(from, to))(r).Items {
		p := c.Path
		if c.PathBase64 != nil {
			p = string(*c.PathBase64)
		}
		if p == worked || strings.HasPrefix(p, worked+"/") {
			got = append(got, fmt.Sprintf("%q %s", p, c.Kind))
		}
	}
	slices.Sort(got)
	if want := changed(a.tree, b.tree); !slices.Equal(got, want) {
		r.Fatalf("the diff is\n%s\nexpected\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func (s *story) verify(r *rapid.T) {
	id, _ := s.past(r, "checkpoint")
	ok(s.h.verify(id))(r)
}

// all looks at everything once more.
func (s *story) all(r *rapid.T) {
	for _, w := range s.running {
		s.same(r, "at the end", s.h.list(r, w.id), w.o.list(r))
	}
	if len(s.running) == 0 {
		s.begin(r)
	}
	var probe string
	for probe = range s.running {
		break
	}
	for id, m := range s.checkpoints {
		ok(s.h.restore(probe, id))(r)
		s.same(r, "restored at the end", s.h.list(r, probe), m.tree)
		if cp, err := s.h.verify(id); err != nil || cp.Durability != types.DurabilityDurable {
			r.Fatalf("verify says %v of %s", err, cp.Durability)
		}
		s.browsed(r, id, m)
	}
	if _, err := s.h.getCheckpoint("ckpt_00000000000000000000000000"); client.CodeOf(err) != types.NotFound {
		r.Fatalf("a checkpoint that never was: %v", err)
	}
}
