package e2e

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"cairn/api/client"
	"cairn/api/types"
	"cairn/sandbox"
)

// subject is what a failpoint case works on: a sandbox in state after, whose
// only checkpoint so far is in state before, with a main command and a process.
type subject struct {
	h    *host
	t    *testing.T
	sb   types.Sandbox
	old  types.Checkpoint
	proc types.Process
	dump types.Checkpoint // with the process, where a case takes one
	err  error            // of the operation
}

// operation is what a group of failpoints lies on.
type operation struct {
	prepare func(*subject)       // more than newSubject does; nil for nothing
	do      func(*subject) error // reaches the failpoints, maybe later in the background
	check   func(s *subject, point string)
	later   bool // the failpoints are in the background: no error is answered
}

func operations() map[string]operation {
	return map[string]operation{
		"create": {
			do: func(s *subject) error {
				_, err := s.h.create(types.CreateSandbox{Name: ptr("born")})
				return err
			},
			check: func(s *subject, _ string) {
				s.is(after, true)
				if _, err := s.h.sandbox("born"); client.CodeOf(err) != types.NotFound {
					s.t.Errorf("a sandbox that nobody was told of: %v", err)
				}
				s.next(ok(s.h.create(types.CreateSandbox{Name: ptr("born")}))(s.t).Id)
				done(s.t, s.h.remove("born"))
			},
		},
		"checkpoint": {
			do:    func(s *subject) error { _, err := s.h.checkpoint(s.sb.Id); return err },
			check: checkCheckpoint,
		},
		"copy": {
			prepare: func(s *subject) {
				s.proc = s.play("writer", "/held")
			},
			do:    func(s *subject) error { _, err := s.h.checkpoint(s.sb.Id); return err },
			check: checkCheckpoint,
		},
		"durable": {
			later: true,
			do:    func(s *subject) error { _, err := s.h.durable(s.sb.Id); return err },
			check: checkCheckpoint,
		},
		"restore": {
			do: func(s *subject) error { _, err := s.h.restore(s.sb.Id, s.old.Id); return err },
			check: func(s *subject, point string) {
				restored := slices.Contains([]string{"restore.attached", "restore.committed"}, point)
				want, kept := after, ""
				if restored {
					want, kept = before, after
				}
				s.is(want, point == "restore.prepared")
				s.kept(kept)
				sb := ok(s.h.sandbox(s.sb.Id))(s.t)
				if restored != (sb.Head == s.old.Id && sb.Generation == s.sb.Generation+1) || sb.State != types.SandboxStateRunning {
					s.t.Errorf("the sandbox is recorded as %+v", sb)
				}
				s.generation()
				if restored {
					s.main()
				}
			},
		},
		"restore_paths": {
			do: func(s *subject) error { _, err := s.h.restore(s.sb.Id, s.old.Id, "/w"); return err },
			check: func(s *subject, point string) {
				if point == "restore_paths.kept" {
					s.is(after, true)
				}
				// Whatever is there now, the checkpoint taken first brings all of it back.
				kept := s.kept(after)
				ok(s.h.restore(s.sb.Id, kept.Id))(s.t)
				s.is(after, false)
			},
		},
		"delete": {
			do: func(s *subject) error { return s.h.remove(s.sb.Id) },
			check: func(s *subject, _ string) {
				if err := s.h.remove(s.sb.Id); err != nil && client.CodeOf(err) != types.NotFound {
					s.t.Errorf("delete it again: %v", err)
				}
				if _, err := s.h.sandbox(s.sb.Id); client.CodeOf(err) != types.NotFound {
					s.t.Errorf("the deleted sandbox is there: %v", err)
				}
				s.next(ok(s.h.fork(s.old.Id))(s.t).Id)
			},
		},
		"delete_checkpoint": {
			do: func(s *subject) error { return s.h.deleteCheckpoint(s.old.Id) },
			check: func(s *subject, _ string) {
				s.is(after, true)
				if _, err := s.h.getCheckpoint(s.old.Id); client.CodeOf(err) != types.NotFound {
					s.t.Errorf("the deleted checkpoint is there: %v", err)
				}
				s.next(s.sb.Id)
			},
		},
		"sweep": {
			later: true,
			do:    func(s *subject) error { return s.h.remove(ok(s.h.fork(s.old.Id))(s.t).Id) },
			check: func(s *subject, _ string) { s.is(after, true); s.next(s.sb.Id) },
		},
		"squash": {
			later: true,
			do: func(s *subject) error {
				for range testDepth + 2 {
					if _, err := s.h.sh(s.sb.Id, "date +%N >>/grown"); err != nil {
						return err
					}
					if _, err := s.h.durable(s.sb.Id); err != nil {
						return err
					}
				}
				return nil
			},
			check: func(s *subject, _ string) {
				s.is(after, true)
				for _, cp := range s.checkpoints() {
					ok(s.h.verify(cp.Id))(s.t)
				}
				s.next(s.sb.Id)
			},
		},
		"dump": {
			prepare: (*subject).anew,
			do:      func(s *subject) error { _, err := s.h.dump(s.sb.Id); return err },
			check: func(s *subject, _ string) {
				s.is(after, true)
				if list := s.checkpoints(); len(list) != 1 {
					s.t.Fatalf("%d checkpoints: %+v", len(list), list)
				}
				s.main()
				s.sleepAndBack()
			},
		},
		"sleep": {
			prepare: (*subject).anew,
			do:      func(s *subject) error { _, err := s.h.sleep(s.sb.Id); return err },
			check: func(s *subject, point string) {
				sb := ok(s.h.sandbox(s.sb.Id))(s.t)
				if point == "sleep.committed" {
					if sb.State != types.SandboxStateStopped || sb.Asleep != sb.Head || len(s.checkpoints()) != 2 {
						s.t.Errorf("the sandbox is recorded as %+v", sb)
					}
					if p := ok(s.h.process(sb.Id, s.proc.Id))(s.t); p.State != types.ProcessStateAsleep {
						s.t.Errorf("the process is %s", p.State)
					}
					ok(s.h.verify(sb.Asleep))(s.t)
					ok(s.h.resume(sb.Id))(s.t)
				} else if sb.State != types.SandboxStateRunning || len(s.checkpoints()) != 1 {
					s.t.Errorf("the sandbox is recorded as %+v", sb)
				}
				s.is(after, true)
				s.main()
				s.sleepAndBack()
			},
		},
		"revive": {
			prepare: func(s *subject) {
				s.anew()
				s.dump = ok(s.h.dump(s.sb.Id))(s.t)
				ok(s.h.sh(s.sb.Id, putState(before, after)))(s.t)
			},
			do: func(s *subject) error { _, err := s.h.revive(s.sb.Id, s.dump.Id); return err },
			check: func(s *subject, point string) {
				sb := ok(s.h.sandbox(s.sb.Id))(s.t)
				switch {
				case point == "revive.committed":
					s.is(after, true)
					s.kept(before)
					s.generation()
				case point == "revive.journalled" && sb.State == types.SandboxStateRunning:
					s.is(before, true) // nothing had ended
				default:
					if sb.State != types.SandboxStateStopped || sb.Head != s.dump.Id || sb.Generation != s.sb.Generation {
						s.t.Errorf("the sandbox is recorded as %+v", sb)
					}
					ok(s.h.resume(s.sb.Id))(s.t)
					s.is(before, false)
				}
				s.main()
				ok(s.h.revive(s.sb.Id, s.dump.Id))(s.t)
				s.is(after, true)
				s.sleepAndBack()
			},
		},
		"pages": pagesOperation(), "compress": compressOperation(), "expand": expandOperation(),
		"trial": trialOperation(),
		"resume": {
			prepare: func(s *subject) {
				s.h.killFirst(s.t, s.sb.Id)
			},
			do: func(s *subject) error { _, err := s.h.resume(s.sb.Id); return err },
			check: func(s *subject, _ string) {
				if sb := ok(s.h.sandbox(s.sb.Id))(s.t); sb.State != types.SandboxStateStopped {
					s.t.Errorf("the sandbox is %s", sb.State)
				}
				ok(s.h.resume(s.sb.Id))(s.t)
				s.is(after, false)
				s.main()
				s.next(s.sb.Id)
			},
		},
	}
}

// testDepth is the depth at which stacks are squashed here.
const testDepth = 3

// noWayBack are the failpoints behind the point of no return: the operation
// succeeds there whatever happens.
func noWayBack() []string {
	return []string{
		"checkpoint.attached", "checkpoint.thawed", "checkpoint.committed", "copy.committed", "restore.attached",
		"restore.committed", "delete_checkpoint.committed", "squash.committed", "sleep.committed", "revive.committed", "pages.committed",
		"compress.committed", "expand.committed",
	}
}

func TestKilledAtEveryFailpoint(t *testing.T) {
	t.Parallel()
	atEveryFailpoint(t, "kill", func(s *subject, op operation, point string) {
		s.h.wait()
		s.h.races()
		s.h.arm("")
		op.check(s, point)
	})
}

func TestErrorAtEveryFailpoint(t *testing.T) {
	t.Parallel()
	atEveryFailpoint(t, "error", func(s *subject, op operation, point string) {
		var problem *client.Error
		switch {
		case slices.Contains(noWayBack(), point):
			done(s.t, s.err)
		case s.err == nil && !op.later:
			s.t.Error("no error was answered")
		case s.err != nil && !errors.As(s.err, &problem):
			s.t.Errorf("not a problem document: %v", s.err)
		}
		// It was reached when the daemon says so: all of them are logged.
		eventually(s.t, "the failpoint shows in the log", func() bool { return strings.Contains(s.h.log.String(), point+": injected") })
		s.h.arm("")
		op.check(s, point)
	})
}

func atEveryFailpoint(t *testing.T, action string, then func(s *subject, op operation, point string)) {
	h := newHost(t, options{plain: true, maxDepth: testDepth})
	ops := operations()
	for _, point := range sandbox.Failpoints() {
		t.Run(point, func(t *testing.T) {
			h.t = t
			if h.dead() { // an earlier case failed
				h.o.failpoints = ""
				h.start()
			}
			group, _, _ := strings.Cut(point, ".")
			op, found := ops[group]
			if !found {
				t.Fatal("no case reaches it")
			}
			s := newSubject(t, h)
			if op.prepare != nil {
				op.prepare(s)
			}
			h.arm(point + "=" + action)
			s.err = op.do(s)
			then(s, op, point)
			if t.Failed() {
				t.Logf("the operation answered %v; the daemon says: %s", s.err, h.log.tail())
			}
			s.clear()
		})
	}
	h.t = t
}

func newSubject(t *testing.T, h *host) *subject {
	t.Helper()
	s := &subject{h: h, t: t}
	s.sb = ok(h.create(types.CreateSandbox{Command: ptr([]string{"sleep", "infinity"})}))(t)
	ok(h.sh(s.sb.Id, putState(before, after)))(t)
	s.old = ok(h.durable(s.sb.Id))(t)
	ok(h.sh(s.sb.Id, putState(after, before)))(t)
	s.proc = s.play("idle", "/tmp/idle")
	return s
}

// anew starts the processes of the subject again: a checkpoint of the files has switched
// the root file system away that they ran from, so that they cannot be dumped.
func (s *subject) anew() {
	s.t.Helper()
	back := ok(s.h.restore(s.sb.Id, s.old.Id))(s.t)
	done(s.t, s.h.deleteCheckpoint(back.Undo))
	ok(s.h.sh(s.sb.Id, putState(after, before)))(s.t)
	s.proc = s.play("idle", "/tmp/idle")
	s.sb = ok(s.h.sandbox(s.sb.Id))(s.t)
}

// play starts an agent's role and waits until it is ready.
func (s *subject) play(role, path string) types.Process {
	s.t.Helper()
	return s.h.play(s.t, s.sb.Id, role, path)
}

func (h *host) play(t fataler, id, role, path string) types.Process {
	t.Helper()
	p := ok(h.background(id, agentPath, "play", role, path))(t)
	eventually(t, role+" is ready", func() bool {
		out, err := h.output(id, p.Id)
		return err == nil && strings.HasPrefix(out, "ready\n")
	})
	return p
}

// is checks the state of the running sandbox, and whether its process lives.
func (s *subject) is(state string, processes bool) {
	s.t.Helper()
	if got := ok(s.h.stateOf(s.sb.Id))(s.t); got != state {
		s.t.Errorf("the files are those of %s, expected %s", got, state)
	}
	p := ok(s.h.process(s.sb.Id, s.proc.Id))(s.t)
	if processes != (p.State == types.ProcessStateRunning) {
		s.t.Errorf("the process is %s", p.State)
	}
	if processes {
		done(s.t, s.h.stdin(s.sb.Id, s.proc.Id, "x\n"))
		eventually(s.t, "the process answers", func() bool { return strings.HasSuffix(ok(s.h.output(s.sb.Id, s.proc.Id))(s.t), "ok\n") })
	}
}

// kept checks the checkpoint of what a restore replaced, and gives it; "" is for none.
func (s *subject) kept(want string) types.Checkpoint {
	s.t.Helper()
	for _, cp := range s.checkpoints() {
		if cp.Kind != types.BeforeRestore {
			continue
		}
		if got := ok(s.h.stateIn(cp.Id))(s.t); got != want {
			s.t.Errorf("a restore kept %s", got)
		}
		ok(s.h.verify(cp.Id))(s.t)
		return cp
	}
	if want != "" {
		s.t.Fatal("what the restore replaced was not kept")
	}
	return types.Checkpoint{}
}

func (s *subject) checkpoints() (list []types.Checkpoint) {
	s.t.Helper()
	for _, cp := range ok(s.h.checkpoints())(s.t) {
		if cp.SandboxId == s.sb.Id {
			list = append(list, cp)
		}
	}
	return list
}

// checkCheckpoint checks what is there after a checkpoint was cut short.
func checkCheckpoint(s *subject, point string) {
	s.is(after, true)
	list := s.checkpoints()
	sb := ok(s.h.sandbox(s.sb.Id))(s.t)
	taken := !slices.Contains([]string{"checkpoint.journalled", "checkpoint.prepared", "checkpoint.frozen", "copy.frozen", "copy.captured"}, point)
	if want := map[bool]int{false: 1, true: 2}[taken]; len(list) != want || sb.Head != list[0].Id {
		s.t.Fatalf("%d checkpoints, head %s, expected %d: %+v", len(list), sb.Head, want, list)
	}
	if taken {
		if got := ok(s.h.stateIn(list[0].Id))(s.t); got != after {
			s.t.Errorf("the checkpoint has %s", got)
		}
		ok(s.h.verify(list[0].Id))(s.t)
	}
	s.next(s.sb.Id)
}

// next shows that operations go on: checkpoint, verify, restore.
func (s *subject) next(id string) {
	s.t.Helper()
	ok(s.h.sh(id, "mkdir -p /w && echo next >>/w/next"))(s.t)
	cp := ok(s.h.durable(id))(s.t)
	ok(s.h.verify(cp.Id))(s.t)
	ok(s.h.sh(id, "rm /w/next"))(s.t)
	ok(s.h.restore(id, cp.Id))(s.t)
	if got := ok(s.h.sh(id, "cat /w/next"))(s.t); got != "next" {
		s.t.Errorf("restored %q", got)
	}
}

// sleepAndBack shows that checkpoints with processes go on.
func (s *subject) sleepAndBack() {
	s.t.Helper()
	ok(s.h.sleep(s.sb.Id))(s.t)
	ok(s.h.resume(s.sb.Id))(s.t)
	s.is(after, true)
}

// generation checks that programs inside read the recorded number.
func (s *subject) generation() {
	s.t.Helper()
	sb := ok(s.h.sandbox(s.sb.Id))(s.t)
	if got, want := ok(s.h.sh(sb.Id, "cat /run/cairn/generation"))(s.t), sb.Generation; got != strings.TrimSpace(itoa(want)) {
		s.t.Errorf("generation %s inside, %d recorded", got, want)
	}
}

// main checks that the command runs, once.
func (s *subject) main() {
	s.t.Helper()
	n := 0
	for _, p := range ok(s.h.processesOf(s.sb.Id))(s.t) {
		if p.Main && p.State == types.ProcessStateRunning {
			n++
		}
	}
	if n != 1 {
		s.t.Errorf("the command runs %d times", n)
	}
}

// clear deletes everything; slots are given back and nothing runs.
func (s *subject) clear() {
	s.t.Helper()
	s.h.deleteAll()
	if names := s.h.names("pool", "s"); len(names) > 0 {
		s.t.Errorf("slots are left: %v", names)
	}
	for _, p := range s.h.processes() {
		if strings.Contains(p.args, "cairn-init") {
			s.t.Errorf("left running: %s", p)
		}
	}
}

// killFirst kills PID 1 of a sandbox and waits until that is known.
func (h *host) killFirst(t fataler, id string) {
	t.Helper()
	done(t, syscall.Kill(h.firstPID(t, id), syscall.SIGKILL))
	eventually(t, "the sandbox is stopped", func() bool { return ok(h.sandbox(id))(t).State == types.SandboxStateStopped })
}
