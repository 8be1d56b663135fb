package api_test

import (
	"testing"
	"time"

	"cairn/api/types"
	"cairn/sandbox"
)

func TestHooks(t *testing.T) {
	h := newHarness(t)
	id := h.ok(201, "POST", "/v1/sandboxes", `{"image":"debian","name":"bob","hooks":[
		{"event":"before_checkpoint","command":["sync"],"timeout_ms":1500,"on_failure":"ignore"},
		{"event":"after_fork","url":"https://hooks.example.com/x"}]}`)["id"].(string)
	sb, err := h.svc.Sandbox(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	got := sb.Config.Hooks
	if len(got) != 2 || got[0].Event != sandbox.HookBeforeCheckpoint || got[0].Command[0] != "sync" || got[0].Timeout != 1500*time.Millisecond || got[0].OnFailure != sandbox.OnFailureIgnore {
		t.Errorf("the domain was asked for %+v", got)
	}
	if got[1].Event != sandbox.HookAfterFork || got[1].URL != "https://hooks.example.com/x" || got[1].Command != nil {
		t.Errorf("the domain was asked for %+v", got[1])
	}
	list := h.ok(200, "GET", "/v1/sandboxes/bob", "")["hooks"].([]any)
	if first := list[0].(map[string]any); first["timeout_ms"] != 1500.0 || first["url"] != nil || first["on_failure"] != "ignore" {
		t.Errorf("answered %v", first)
	}
	if kept := h.ok(200, "PATCH", "/v1/sandboxes/bob", `{"labels":{}}`)["hooks"].([]any); len(kept) != 2 {
		t.Errorf("hooks after another change: %v", kept)
	}
	if none := h.ok(200, "PATCH", "/v1/sandboxes/bob", `{"hooks":[]}`)["hooks"].([]any); len(none) != 0 {
		t.Errorf("hooks after none were given: %v", none)
	}
	for body, field := range map[string]string{
		`{"hooks":[{"event":"never","command":["x"]}]}`:                            "hooks.0.event",
		`{"hooks":[{"command":["x"]}]}`:                                            "hooks.0.event",
		`{"hooks":[{"event":"after_fork","command":[]}]}`:                          "hooks.0.command",
		`{"hooks":[{"event":"after_fork","url":"ftp://x/"}]}`:                      "hooks.0.url",
		`{"hooks":[{"event":"after_fork","url":"http://x/\r\nHost: y"}]}`:          "hooks.0.url",
		`{"hooks":[{"event":"after_fork","command":["x"],"timeout_ms":0}]}`:        "hooks.0.timeout_ms",
		`{"hooks":[{"event":"after_fork","command":["x"],"timeout_ms":600001}]}`:   "hooks.0.timeout_ms",
		`{"hooks":[{"event":"after_fork","command":["x"],"on_failure":"retry"}]}`:  "hooks.0.on_failure",
		`{"hooks":[{"event":"after_fork","command":["x"],"user":"root"}]}`:         "hooks.0.user",
		`{"hooks":[` + many(`{"event":"after_fork","command":["x"]}`, 17) + `]}`:   "hooks",
		`{"hooks":[{"event":"after_fork","command":["x"]},{"event":"after_fork"]}`: "body",
	} {
		p := h.problem(400, types.InvalidArgument, "PATCH", "/v1/sandboxes/bob", body)
		if p.Errors == nil || (*p.Errors)[0].Field != field {
			t.Errorf("%.80s: errors %+v, want field %s", body, p.Errors, field)
		}
	}
	h.svc.Err = func(string) error {
		return sandbox.Errorf(sandbox.CodeHookFailed, "hook 1 (before_checkpoint, \"sync\") failed: it ended with exit code 1")
	}
	h.problem(424, types.HookFailed, "POST", "/v1/sandboxes/bob/checkpoints", "")
}

func many(s string, n int) string {
	all := s
	for range n - 1 {
		all += "," + s
	}
	return all
}
