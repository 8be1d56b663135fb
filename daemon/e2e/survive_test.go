package e2e

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"cairn/api/client"
	"cairn/api/types"
)

// TestContainerdKilled kills containerd: sandboxes run on, and what needs it
// works again once it is back.
func TestContainerdKilled(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	sb := ok(h.create(types.CreateSandbox{Command: ptr([]string{"sleep", "infinity"})}))(t)
	p := h.play(t, sb.Id, "idle", "/tmp/idle")
	ok(h.sh(sb.Id, putState(before, after)))(t)
	cp := ok(h.checkpoint(sb.Id))(t)
	ok(h.sh(sb.Id, putState(after, before)))(t)

	killed := h.containerd(t)
	done(t, syscall.Kill(killed, syscall.SIGKILL))
	if got := ok(h.stateOf(sb.Id))(t); got != after {
		t.Errorf("the files are those of %s", got)
	}
	if got := ok(h.process(sb.Id, p.Id))(t); got.State != types.ProcessStateRunning {
		t.Errorf("the process is %s", got.State)
	}
	ok(h.checkpoint(sb.Id))(t)
	ok(h.restore(sb.Id, cp.Id))(t)
	if got := ok(h.stateOf(sb.Id))(t); got != before {
		t.Errorf("restored the files of %s", got)
	}
	eventually(t, "containerd runs again", func() bool {
		pid := h.findContainerd()
		return pid != 0 && pid != killed
	})
	var other types.Sandbox
	eventually(t, "a sandbox can be created", func() bool {
		var err error
		other, err = h.create(types.CreateSandbox{})
		if err != nil && client.CodeOf(err) != types.Unavailable {
			t.Fatal(err)
		}
		return err == nil
	})
	ok(h.sh(other.Id, "true"))(t)
	done(t, h.remove(sb.Id))
}

func (h *host) findContainerd() int {
	for _, p := range h.processes() {
		if strings.Contains(p.args, "/containerd --config ") {
			return p.pid
		}
	}
	return 0
}

func (h *host) containerd(t fataler) int {
	t.Helper()
	pid := h.findContainerd()
	if pid == 0 {
		t.Fatalf("containerd does not run")
	}
	return pid
}

// TestFirstProcessKilled kills PID 1 of a sandbox: the sandbox says so, and
// comes back with its files.
func TestFirstProcessKilled(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	sb := ok(h.create(types.CreateSandbox{Command: ptr([]string{"sleep", "infinity"})}))(t)
	p := h.play(t, sb.Id, "idle", "/tmp/idle")
	ok(h.sh(sb.Id, putState(before, after)))(t)
	cp := ok(h.checkpoint(sb.Id))(t)
	ok(h.sh(sb.Id, putState(after, before)))(t)
	h.killFirst(t, sb.Id)
	if got := ok(h.sandbox(sb.Id))(t); got.Reason == "" {
		t.Error("no reason is given")
	}
	if got := ok(h.process(sb.Id, p.Id))(t); got.State != types.ProcessStateLost {
		t.Errorf("the process is %s", got.State)
	}
	if _, err := h.sh(sb.Id, "true"); client.CodeOf(err) != types.Conflict {
		t.Errorf("exec in a stopped sandbox: %v", err)
	}
	if got := ok(h.readFile(sb.Id, "/w/a"))(t); got != after+"\n" {
		t.Errorf("a file of the stopped sandbox has %q", got)
	}
	ok(h.resume(sb.Id))(t)
	if got := ok(h.stateOf(sb.Id))(t); got != after {
		t.Errorf("the files are those of %s", got)
	}
	h.killFirst(t, sb.Id)
	res := ok(h.restore(sb.Id, cp.Id))(t)
	if got := ok(h.stateIn(res.Undo))(t); got != after {
		t.Errorf("restoring a stopped sandbox kept %s", got)
	}
	ok(h.resume(sb.Id))(t)
	if got := ok(h.stateOf(sb.Id))(t); got != before {
		t.Errorf("the files are those of %s", got)
	}
}

// TestSecondDaemon starts another daemon on the same state directory.
func TestSecondDaemon(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	out, err := h.command().CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another cairnd uses this state directory") {
		t.Errorf("a second daemon: %v: %s", err, out)
	}
	ok(h.create(types.CreateSandbox{}))(t)
}

// TestPausedAcrossRestart stops a daemon whose sandboxes are paused.
func TestPausedAcrossRestart(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	sb := ok(h.create(types.CreateSandbox{}))(t)
	p := h.play(t, sb.Id, "writer", "/held")
	ok(h.sh(sb.Id, putState(before, after)))(t)
	ok(h.pause(sb.Id))(t)
	cp := ok(h.checkpoint(sb.Id))(t)
	h.crash()
	if got := ok(h.sandbox(sb.Id))(t); got.State != types.SandboxStatePaused {
		t.Errorf("the sandbox is %s", got.State)
	}
	if _, err := h.sh(sb.Id, "true"); client.CodeOf(err) != types.Conflict {
		t.Errorf("exec in a paused sandbox: %v", err)
	}
	ok(h.resume(sb.Id))(t)
	if got := ok(h.process(sb.Id, p.Id))(t); got.State != types.ProcessStateRunning {
		t.Errorf("the process is %s", got.State)
	}
	ok(h.pause(sb.Id))(t)
	if got := ok(h.restore(sb.Id, cp.Id))(t); got.State != types.SandboxStateRunning {
		t.Errorf("a paused sandbox is %s after a restore", got.State)
	}
	if got := ok(h.stateOf(sb.Id))(t); got != before {
		t.Errorf("the files are those of %s", got)
	}
}

// TestManyAtOnce creates, checkpoints, restores and deletes many sandboxes at
// the same time.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{warm: 4})
	const many = 50
	errs := make([]error, many)
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() { errs[i] = h.life(fmt.Sprintf("one-%d", i)) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// life is a whole life of a sandbox.
func (h *host) life(name string) error {
	sb, err := h.create(types.CreateSandbox{Name: &name})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	if _, err := h.sh(name, putState(before, after)); err != nil {
		return err
	}
	cp, err := h.checkpoint(name)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if _, err := h.sh(name, putState(after, before)); err != nil {
		return err
	}
	if _, err := h.restore(name, cp.Id); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if got, err := h.stateOf(name); err != nil || got != before {
		return fmt.Errorf("restored %s: %w", got, err)
	}
	if _, err := h.verify(cp.Id); err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	if got, err := h.sh(name, "cat /etc/hostname"); err != nil || got != name {
		return fmt.Errorf("host name %q: %w", got, err)
	}
	return h.remove(sb.Id)
}

// TestOneAfterTheOther runs operations on one sandbox at once: each succeeds or
// is refused with the name of the one that runs.
func TestOneAfterTheOther(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{lockWait: "1ms"})
	sb := ok(h.create(types.CreateSandbox{}))(t)
	ok(h.sh(sb.Id, putState(before, after)))(t)
	cp := ok(h.checkpoint(sb.Id))(t)
	h.play(t, sb.Id, "writer", "/held")
	running := map[string]bool{}
	eventually(t, "an operation met another one", func() bool {
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				var err error
				if i%2 == 0 {
					_, err = h.checkpoint(sb.Id)
				} else {
					_, err = h.restore(sb.Id, cp.Id)
				}
				var problem *client.Error
				if err == nil {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if !errors.As(err, &problem) || problem.Code != types.Busy || problem.Running == nil || problem.Status != 409 {
					t.Errorf("neither done nor busy: %v", err)
					return
				}
				running[*problem.Running] = true
			})
		}
		wg.Wait()
		return t.Failed() || len(running) > 0
	})
	for name := range running {
		if name != "checkpoint" && name != "restore" {
			t.Errorf("%q is said to run", name)
		}
	}
	var got string
	eventually(t, "the sandbox answers", func() (done bool) {
		var err error
		got, err = h.stateOf(sb.Id)
		return client.CodeOf(err) != types.Busy
	})
	if got != before {
		t.Errorf("the files are those of %q", got)
	}
}

// TestDeletedStaysDeleted lists a directory after the layers in which a file was
// made and deleted were squashed.
func TestDeletedStaysDeleted(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{maxDepth: 2})
	sb := ok(h.create(types.CreateSandbox{}))(t)
	var last types.Checkpoint
	for _, script := range []string{"mkdir -p /w/d && touch /w/a /w/d/a", "rm /w/a /w/d/a", "touch /w/b", "rm /w/b", "touch /w/c"} {
		ok(h.sh(sb.Id, script))(t)
		last = ok(h.durable(sb.Id))(t)
	}
	image := len(h.image.Layers)
	eventually(t, "the layers are squashed", func() bool { return ok(h.getCheckpoint(last.Id))(t).Layers <= 2+image })
	ok(h.restore(sb.Id, last.Id))(t)
	got := slices.Sorted(maps.Keys(h.list(t, sb.Id)))
	if want := []string{worked, worked + "/c", worked + "/d"}; !slices.Equal(got, want) {
		t.Errorf("the directory lists %q, expected %q", got, want)
	}
}
