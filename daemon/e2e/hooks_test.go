package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"cairn/api/client"
	"cairn/api/types"
)

// receiver is what hooks post to.
type receiver struct {
	url string

	mu    sync.Mutex
	calls []map[string]any
	paths []string
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	mux := http.NewServeMux()
	mux.HandleFunc("/hooks/", func(w http.ResponseWriter, req *http.Request) {
		var call map[string]any
		if err := json.NewDecoder(req.Body).Decode(&call); err != nil {
			t.Error(err)
		}
		if req.Header.Get("Idempotency-Key") != call["operation"] {
			t.Errorf("idempotency key %q of %v", req.Header.Get("Idempotency-Key"), call)
		}
		r.mu.Lock()
		r.calls = append(r.calls, call)
		r.mu.Unlock()
		switch req.URL.Path {
		case "/hooks/moved":
			http.Redirect(w, req, "/other", http.StatusTemporaryRedirect)
		case "/hooks/broken":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/hooks/slow":
			<-req.Context().Done()
		}
	})
	mux.HandleFunc("/", func(_ http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.paths = append(r.paths, req.URL.Path)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	r.url = srv.URL
	return r
}

func (r *receiver) take() []map[string]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

func (r *receiver) allowed() options {
	return options{extra: fmt.Sprintf("[hooks]\nallow = [%q]\n", r.url+"/hooks")}
}

func command(event types.HookEvent, script string) types.Hook {
	return types.Hook{Event: event, Command: &[]string{"sh", "-c", script}}
}

func post(event types.HookEvent, url string) types.Hook { return types.Hook{Event: event, Url: &url} }

func (h *host) setHooks(id string, hooks ...types.Hook) error {
	ctx, cancel := request()
	defer cancel()
	list := append(types.Hooks{}, hooks...)
	return client.Done(h.client.UpdateSandbox(ctx, id, types.UpdateSandbox{Hooks: &list}))
}

// hookEvents gives the events of hooks of a sandbox that are recorded, and no others.
func (h *host) hookEvents(t fataler, id string) (list []types.Event) {
	t.Helper()
	// A change of its own marks the end of what is of interest.
	ctx, cancel := request()
	defer cancel()
	sb := ok(client.Get[types.Sandbox](h.client.UpdateSandbox(ctx, id, types.UpdateSandbox{Labels: &types.Labels{"mark": "end"}})))(t)
	stream := ok(client.OpenStream(h.client.StreamEvents(ctx, &types.StreamEventsParams{After: ptr(int64(0))}, client.Accept(client.EventStream))))(t)
	defer stream.Close()
	for {
		raw := ok(stream.Next())(t)
		var e types.Event
		done(t, json.Unmarshal(raw.Data, &e))
		switch {
		case e.Sandbox != sb.Id:
		case strings.HasPrefix(e.Type, "hook."):
			list = append(list, e)
		case e.Type == "sandbox.updated" && !e.Time.Before(sb.UpdatedAt):
			return list
		}
	}
}

// hookFailed checks that a request failed for a hook, and gives the detail.
func hookFailed(t fataler, err error) string {
	t.Helper()
	var e *client.Error
	if !errors.As(err, &e) || e.Code != types.HookFailed || e.Status != http.StatusFailedDependency {
		t.Fatalf("answered %v, expected a failed hook", err)
	}
	return e.Detail
}

func (h *host) inCheckpoint(id, path string) (string, error) {
	ctx, cancel := request()
	defer cancel()
	body, _, err := client.Body(h.client.ReadCheckpointFile(ctx, id, &types.ReadCheckpointFileParams{Path: path}))
	if err != nil {
		return "", err
	}
	defer body.Close()
	b, err := io.ReadAll(body)
	return string(b), err
}

func TestHookCommands(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	const said = `echo $CAIRN_EVENT $CAIRN_CHECKPOINT $CAIRN_GENERATION $(id -u) $(pwd) $MINE >>/tmp/said`
	sb := ok(h.create(types.CreateSandbox{
		User: ptr("1000"), Cwd: ptr("/usr"), Env: &types.Env{"MINE": "yes"},
		Hooks: &types.Hooks{command(types.BeforeCheckpoint, said), command(types.AfterRestore, said+"; cat /run/cairn/generation >>/tmp/said"), command(types.AfterFork, said)},
	}))(t)
	if len(sb.Hooks) != 3 || *sb.Hooks[0].TimeoutMs != 10_000 || *sb.Hooks[0].OnFailure != types.Fail || (*sb.Hooks[0].Command)[2] != said {
		t.Errorf("the sandbox shows %+v", sb.Hooks)
	}
	cp := ok(h.checkpoint(sb.Id))(t)
	want := fmt.Sprintf("before_checkpoint %s 1 1000 /usr yes\n", cp.Id)
	if got := ok(h.inCheckpoint(cp.Id, "/tmp/said"))(t); got != want {
		t.Errorf("the checkpoint has %q, expected %q", got, want)
	}
	ok(h.restore(sb.Id, cp.Id))(t)
	restored := want + fmt.Sprintf("after_restore %s 2 1000 /usr yes\n2", cp.Id)
	if got := ok(h.readFile(sb.Id, "/tmp/said"))(t); strings.TrimSpace(got) != restored {
		t.Errorf("restored, it has %q, expected %q", got, restored)
	}
	child := ok(h.fork(cp.Id))(t)
	if got := ok(h.readFile(child.Id, "/tmp/said"))(t); got != want+fmt.Sprintf("after_fork %s 2 1000 /usr yes\n", cp.Id) {
		t.Errorf("the child has %q", got)
	}
	if len(child.Hooks) != 3 {
		t.Errorf("the child shows %+v", child.Hooks)
	}
	var kinds []string
	for _, e := range h.hookEvents(t, sb.Id) {
		kinds = append(kinds, fmt.Sprint(e.Type, " ", (*e.Data)["event"]))
		if e.Operation == nil || (*e.Data)["checkpoint"] != cp.Id || (*e.Data)["exit_code"] != 0.0 {
			t.Errorf("event %+v, %v", e, e.Data)
		}
	}
	if !slices.Equal(kinds, []string{"hook.succeeded before_checkpoint", "hook.succeeded after_restore"}) {
		t.Errorf("events %v", kinds)
	}

	// With processes, which go on meanwhile, and after sleep.
	done(t, h.setHooks(sb.Id, command(types.BeforeCheckpoint, "echo synced >/tmp/synced"), command(types.AfterRestore, "echo $CAIRN_CHECKPOINT $(cat /run/cairn/generation) >/tmp/back")))
	p := h.play(t, sb.Id, "idle", "/tmp/idle")
	with := ok(h.dump(sb.Id))(t)
	if got := ok(h.inCheckpoint(with.Id, "/tmp/synced"))(t); !with.Processes || got != "synced\n" {
		t.Errorf("the checkpoint has %q, %+v", got, with)
	}
	back := func(checkpoint string) {
		t.Helper()
		now := ok(h.sandbox(sb.Id))(t)
		if got := ok(h.readFile(sb.Id, "/tmp/back"))(t); got != fmt.Sprintf("%s %d\n", checkpoint, now.Generation) {
			t.Errorf("the hook saw %q in generation %d", got, now.Generation)
		}
		if proc := ok(h.process(sb.Id, p.Id))(t); proc.State != types.ProcessStateRunning {
			t.Errorf("the process is %s", proc.State)
		}
	}
	ok(h.revive(sb.Id, with.Id))(t)
	back(with.Id)
	slept := ok(h.sleep(sb.Id))(t)
	ok(h.resume(sb.Id))(t)
	back(slept.Id)
	ok(h.sleep(sb.Id))(t)
	ok(h.revive(sb.Id, with.Id))(t) // of one that is stopped: the hooks are run when it is resumed
	ok(h.resume(sb.Id))(t)
	back(with.Id)

	// A paused sandbox is not woken, and only whole restores have hooks.
	done(t, h.setHooks(sb.Id, command(types.BeforeCheckpoint, "exit 1"), command(types.AfterRestore, "exit 1")))
	ok(h.pause(sb.Id))(t)
	ok(h.checkpoint(sb.Id))(t)
	ok(h.resume(sb.Id))(t)
	ok(h.restore(sb.Id, cp.Id, "/tmp"))(t)
}

func TestHookFailures(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	sb := ok(h.create(types.CreateSandbox{}))(t)
	ok(h.sh(sb.Id, putState(before, after)))(t)
	first := ok(h.checkpoint(sb.Id))(t)
	ok(h.sh(sb.Id, putState(after, before)))(t)
	untouched := func() {
		t.Helper()
		if now := ok(h.sandbox(sb.Id))(t); now.Head != first.Id || now.State != types.SandboxStateRunning || len(ok(h.checkpoints())(t)) != 1 {
			t.Errorf("the sandbox is %+v", now)
		}
		if got := ok(h.stateOf(sb.Id))(t); got != after {
			t.Errorf("the files are those of %s", got)
		}
	}

	done(t, h.setHooks(sb.Id, command(types.BeforeCheckpoint, "true"), command(types.BeforeCheckpoint, `printf 'all is \033[31mred\033[0m\n' >&2; exit 3`), command(types.BeforeCheckpoint, "touch /not-reached")))
	_, err := h.checkpoint(sb.Id)
	detail := hookFailed(t, err)
	if !strings.Contains(detail, "hook 2 (before_checkpoint") || !strings.Contains(detail, "exit code 3") || !strings.Contains(detail, `all is \x1b[31mred`) || strings.Contains(detail, "\x1b") {
		t.Errorf("the problem says %q", detail)
	}
	untouched()
	if _, err := h.forkNow(sb.Id); client.CodeOf(err) != types.HookFailed {
		t.Errorf("fork: %v", err)
	}
	untouched()
	if _, err := h.readFile(sb.Id, "/not-reached"); client.CodeOf(err) != types.NotFound {
		t.Errorf("a hook was run after the one that failed: %v", err)
	}
	if events := h.hookEvents(t, sb.Id); len(events) != 4 || events[1].Type != "hook.failed" || (*events[1].Data)["exit_code"] != 3.0 || (*events[1].Data)["hook"] != 2.0 {
		t.Errorf("events %+v", events)
	}

	long := command(types.BeforeCheckpoint, "sleep 4242 & sleep 4242")
	long.TimeoutMs = ptr(int64(150))
	done(t, h.setHooks(sb.Id, long))
	_, err = h.checkpoint(sb.Id)
	if detail := hookFailed(t, err); !strings.Contains(detail, "150ms") {
		t.Errorf("the problem says %q", detail)
	}
	untouched()
	h.noSleepers(t, sb.Id)
	list := ok(h.processesOf(sb.Id))(t)
	i := slices.IndexFunc(list, func(p types.Process) bool { return p.Hook != nil }) // the newest comes first
	if p := list[i]; *p.Hook != "before_checkpoint" || !p.TimedOut || p.State != types.ProcessStateExited {
		t.Errorf("the hook's process is %+v", p)
	}

	done(t, h.setHooks(sb.Id, command(types.BeforeCheckpoint, "kill -9 $$")))
	_, err = h.checkpoint(sb.Id)
	if detail := hookFailed(t, err); !strings.Contains(detail, "137") {
		t.Errorf("the problem says %q", detail)
	}
	done(t, h.setHooks(sb.Id, types.Hook{Event: types.BeforeCheckpoint, Command: &[]string{"/no/such/program"}}))
	_, err = h.checkpoint(sb.Id)
	if detail := hookFailed(t, err); !strings.Contains(detail, "not found") {
		t.Errorf("the problem says %q", detail)
	}
	untouched()

	// The caller goes away.
	done(t, h.setHooks(sb.Id, command(types.BeforeCheckpoint, "sleep 4242")))
	ctx, leave := context.WithCancel(context.Background())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = client.Done(h.client.CreateCheckpoint(ctx, sb.Id, nil, types.CreateCheckpoint{}))
	}()
	h.inHook(t, sb.Id)
	leave()
	<-gone
	h.noSleepers(t, sb.Id)
	untouched()

	ignored := command(types.BeforeCheckpoint, "exit 1")
	ignored.OnFailure = ptr(types.Ignore)
	done(t, h.setHooks(sb.Id, ignored, command(types.AfterRestore, "exit 7")))
	second := ok(h.checkpoint(sb.Id))(t)
	ok(h.sh(sb.Id, "echo more >/w/more"))(t)
	_, err = h.restore(sb.Id, first.Id)
	undo := ok(h.checkpoints())(t)[0]
	if detail := hookFailed(t, err); !strings.Contains(detail, "exit code 7") || !strings.Contains(detail, first.Id) || !strings.Contains(detail, undo.Id) || undo.Parent != second.Id {
		t.Errorf("the problem says %q, kept is %+v", detail, undo)
	}
	if now := ok(h.sandbox(sb.Id))(t); now.Head != first.Id || now.Reason != "" || now.State != types.SandboxStateRunning {
		t.Errorf("the sandbox is %+v", now)
	}
	if got := ok(h.stateOf(sb.Id))(t); got != before {
		t.Errorf("the files are those of %s", got)
	}

	for _, c := range []struct {
		hook  types.Hook
		field string
	}{
		{types.Hook{Event: types.AfterFork}, "hooks.1"},
		{types.Hook{Event: types.AfterFork, Command: &[]string{"true"}, Url: ptr("http://localhost/")}, "hooks.1"},
		{types.Hook{Event: types.AfterFork, Command: &[]string{""}}, "hooks.1.command"},
	} {
		_, err := h.create(types.CreateSandbox{Hooks: &types.Hooks{command(types.AfterFork, "true"), c.hook}})
		var e *client.Error
		if !errors.As(err, &e) || e.Code != types.InvalidArgument || e.Errors == nil || (*e.Errors)[0].Field != c.field {
			t.Errorf("%+v: %v", c.hook, err)
		}
	}
}

// inHook waits until a hook's command runs in a sandbox.
func (h *host) inHook(t fataler, id string) types.Process {
	t.Helper()
	var found types.Process
	eventually(t, "a hook runs", func() bool {
		for _, p := range ok(h.processesOf(id))(t) {
			if p.Hook != nil && p.State == types.ProcessStateRunning {
				found = p
				return true
			}
		}
		return false
	})
	return found
}

// noSleepers checks that what a hook was waiting for has ended.
func (h *host) noSleepers(t fataler, id string) {
	t.Helper()
	eventually(t, "no process of a hook is left", func() bool {
		return ok(h.sh(id, `cat /proc/[0-9]*/comm | grep -c sleep || true`))(t) == "0"
	})
}

func TestWebhooks(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	h := newHost(t, r.allowed())
	sb := ok(h.create(types.CreateSandbox{
		Name:  ptr("web"),
		Hooks: &types.Hooks{post(types.BeforeCheckpoint, r.url+"/hooks/a?key=1"), post(types.AfterRestore, r.url+"/hooks/b"), post(types.AfterFork, r.url+"/hooks/c")},
	}))(t)
	ok(h.sh(sb.Id, putState(before, after)))(t)
	cp := ok(h.checkpoint(sb.Id))(t)
	ok(h.restore(sb.Id, cp.Id))(t)
	child := ok(h.fork(cp.Id))(t)
	calls := r.take()
	if len(calls) != 3 {
		t.Fatalf("posted %v", calls)
	}
	for i, want := range []struct {
		event      string
		sb         types.Sandbox
		generation float64
	}{{"before_checkpoint", sb, 1}, {"after_restore", sb, 2}, {"after_fork", child, 2}} {
		got := calls[i]
		if got["event"] != want.event || got["sandbox_id"] != want.sb.Id || got["sandbox"] != want.sb.Name || got["checkpoint"] != cp.Id || got["generation"] != want.generation || len(got) != 7 {
			t.Errorf("posted %v", got)
		}
	}
	if calls[0]["operation"] == calls[1]["operation"] {
		t.Error("two runs have one id")
	}

	for path, want := range map[string]string{"moved": "redirects are not followed", "broken": "503", "slow": "300ms"} {
		hook := post(types.BeforeCheckpoint, r.url+"/hooks/"+path+"?secret=word")
		hook.TimeoutMs = ptr(int64(300))
		if path != "slow" {
			hook.TimeoutMs = nil
		}
		done(t, h.setHooks(sb.Id, hook))
		_, err := h.checkpoint(sb.Id)
		if detail := hookFailed(t, err); !strings.Contains(detail, want) || strings.Contains(detail, "word") {
			t.Errorf("%s: the problem says %q", path, detail)
		}
	}
	if len(r.paths) != 0 {
		t.Errorf("a redirect was followed to %v", r.paths)
	}

	forbidden := func(err error) {
		t.Helper()
		var e *client.Error
		if !errors.As(err, &e) || e.Code != types.Forbidden || e.Errors == nil || (*e.Errors)[0].Field != "hooks.0.url" {
			t.Errorf("an address that is not allowed: %v", err)
		}
	}
	bad := types.Hooks{post(types.AfterFork, r.url+"/other")}
	_, err := h.create(types.CreateSandbox{Hooks: &bad})
	forbidden(err)
	forbidden(h.setHooks(sb.Id, bad...))
	_, err = h.forkAs(cp.Id, types.Fork{Hooks: &bad})
	forbidden(err)

	// What was allowed is so no longer.
	done(t, h.setHooks(sb.Id, post(types.BeforeCheckpoint, r.url+"/hooks/a")))
	r.take()
	h.o.extra = ""
	h.restart()
	ok(h.sh(sb.Id, "echo more >/w/more"))(t)
	_, err = h.checkpoint(sb.Id)
	if detail := hookFailed(t, err); !strings.Contains(detail, "does not allow") || len(r.take()) != 0 {
		t.Errorf("the problem says %q", detail)
	}
	_, err = h.fork(cp.Id)
	forbidden(err)
	ok(h.forkAs(cp.Id, types.Fork{Hooks: &types.Hooks{}}))(t)
}

func TestHooksOfForks(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	sb := ok(h.create(types.CreateSandbox{Hooks: &types.Hooks{command(types.AfterFork, `echo $HOSTNAME >/mine; [ $HOSTNAME != try-2 ]`)}}))(t)
	p := h.play(t, sb.Id, "idle", "/tmp/idle")
	cp := ok(h.dump(sb.Id))(t)
	for _, processes := range []types.Processes{types.Include, types.Exclude} {
		results := ok(h.forkAs(cp.Id, types.Fork{Name: ptr("try"), Count: ptr(3), Processes: &processes}))(t)
		for i, r := range results.Items {
			name := fmt.Sprintf("try-%d", i+1)
			if i == 1 {
				if r.Error == nil || r.Error.Code != types.HookFailed || r.Sandbox != nil {
					t.Errorf("%s: %+v", name, r)
				}
				if _, err := h.sandbox(name); client.CodeOf(err) != types.NotFound {
					t.Errorf("the child whose hook failed is there: %v", err)
				}
				continue
			}
			if r.Sandbox == nil {
				t.Fatalf("%s: %+v", name, r.Error)
			}
			if got := ok(h.readFile(name, "/mine"))(t); got != name+"\n" {
				t.Errorf("%s has %q", name, got)
			}
			if processes == types.Include {
				if proc := ok(h.process(name, p.Id))(t); proc.State != types.ProcessStateRunning {
					t.Errorf("its process is %s", proc.State)
				}
			}
			done(t, h.remove(name))
		}
	}
	other := ok(h.forkAs(cp.Id, types.Fork{Name: ptr("try-2"), Hooks: &types.Hooks{}}))(t)
	if other.Items[0].Sandbox == nil || len(other.Items[0].Sandbox.Hooks) != 0 {
		t.Errorf("a fork without hooks: %+v", other.Items[0])
	}
}
