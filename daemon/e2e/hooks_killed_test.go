package e2e

import (
	"strings"
	"testing"

	"cairn/api/types"
)

// TestKilledInHook kills the daemon while a hook's command runs.
func TestKilledInHook(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	wait := func(event types.HookEvent) types.Hook {
		hook := command(event, "sleep 4242")
		hook.TimeoutMs = ptr(int64(600_000))
		return hook
	}
	sb := ok(h.create(types.CreateSandbox{Hooks: &types.Hooks{wait(types.BeforeCheckpoint), wait(types.AfterRestore), wait(types.AfterFork)}}))(t)
	ok(h.sh(sb.Id, putState(before, after)))(t)
	kill := func(of func() string, do func() error) {
		t.Helper()
		ended := make(chan error, 1)
		go func() { ended <- do() }()
		var id string
		eventually(t, "there is a sandbox", func() bool { id = of(); return id != "" })
		p := h.inHook(t, id)
		h.crash()
		if err := <-ended; err == nil {
			t.Error("the daemon was killed, and answered")
		}
		eventually(t, "the hook's command has ended", func() bool {
			proc := ok(h.process(id, p.Id))(t)
			return proc.State == types.ProcessStateExited && proc.ExitCode == 137
		})
		h.noSleepers(t, id)
	}
	same := func() string { return sb.Id }

	kill(same, func() error { _, err := h.checkpoint(sb.Id); return err })
	if now := ok(h.sandbox(sb.Id))(t); now.Head != "" || now.Reason != "" || len(ok(h.checkpoints())(t)) != 0 {
		t.Errorf("killed before a checkpoint, the sandbox is %+v", now)
	}
	if events := h.hookEvents(t, sb.Id); len(events) != 0 {
		t.Errorf("events %+v", events)
	}

	done(t, h.setHooks(sb.Id, wait(types.AfterRestore), wait(types.AfterFork)))
	cp := ok(h.checkpoint(sb.Id))(t)
	ok(h.sh(sb.Id, putState(after, before)))(t)
	reported := func(id, event string) {
		t.Helper()
		now := ok(h.sandbox(id))(t)
		if now.State != types.SandboxStateRunning || !strings.Contains(now.Reason, event) || now.Head != cp.Id || now.Generation != 2 {
			t.Errorf("the sandbox is %+v", now)
		}
		if got := ok(h.stateOf(id))(t); got != before {
			t.Errorf("the files are those of %s", got)
		}
		if events := h.hookEvents(t, id); len(events) != 1 || events[0].Type != "hook.failed" || (*events[0].Data)["event"] != event {
			t.Errorf("events %+v", events)
		}
	}
	kill(same, func() error { _, err := h.restore(sb.Id, cp.Id); return err })
	reported(sb.Id, "after_restore")

	kill(func() string {
		for _, s := range ok(h.sandboxes())(t) {
			if s.ForkedFrom == cp.Id && s.State == types.SandboxStateRunning {
				return s.Id
			}
		}
		return ""
	}, func() error { _, err := h.forkAs(cp.Id, types.Fork{Name: ptr("child")}); return err })
	reported("child", "after_fork")

	// Reported once; the next restore is another one.
	h.restart()
	if events := h.hookEvents(t, sb.Id); len(events) != 1 {
		t.Errorf("events %+v", events)
	}
	done(t, h.setHooks(sb.Id, command(types.AfterRestore, "true")))
	ok(h.restore(sb.Id, cp.Id))(t)
	if now := ok(h.sandbox(sb.Id))(t); now.Reason != "" {
		t.Errorf("the reason is still %q", now.Reason)
	}
}

// TestStoppedInHook stops the daemon in order while a hook's command runs.
func TestStoppedInHook(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	hook := command(types.AfterRestore, "sleep 4242")
	hook.TimeoutMs = ptr(int64(600_000))
	sb := ok(h.create(types.CreateSandbox{Hooks: &types.Hooks{hook}}))(t)
	cp := ok(h.checkpoint(sb.Id))(t)
	ended := make(chan error, 1)
	go func() { _, err := h.restore(sb.Id, cp.Id); ended <- err }()
	p := h.inHook(t, sb.Id)
	h.restart()
	if err := <-ended; err == nil {
		t.Error("the hook was still running, and the restore was answered")
	}
	eventually(t, "the hook's command has ended", func() bool {
		return ok(h.process(sb.Id, p.Id))(t).State == types.ProcessStateExited
	})
	if now := ok(h.sandbox(sb.Id))(t); now.State != types.SandboxStateRunning || !strings.Contains(now.Reason, "after_restore") || now.Generation != 2 {
		t.Errorf("the sandbox is %+v", now)
	}
}
