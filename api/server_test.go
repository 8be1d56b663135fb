package api_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"cairn/api"
	"cairn/api/types"
	"cairn/sandbox"
)

const (
	noSandbox    = "sbx_01J00000000000000000000000"
	noCheckpoint = "ckpt_01J00000000000000000000000"
)

func TestAnswers(t *testing.T) {
	h := newHarness(t)
	id := h.sandbox()
	sb := "/v1/sandboxes/alice"
	h.ok(200, "GET", "/v1/info", "")
	h.ok(200, "GET", "/healthz", "")
	h.ok(200, "GET", "/openapi.yaml", "")
	h.ok(200, "GET", sb, "")
	h.ok(200, "GET", "/v1/sandboxes?state=running&label=a=b&limit=1", "")
	h.ok(200, "PATCH", sb, `{"labels":{"x":"y"}}`)
	h.ok(200, "POST", sb+"/pause", "")
	h.ok(200, "POST", sb+"/resume", "")
	if u := h.ok(200, "GET", sb+"/usage", ""); u["cpu_ms"] != 1.5 {
		t.Errorf("usage %v", u)
	}
	res := h.ok(200, "POST", sb+"/exec", `{"command":["echo","hi"]}`)
	if res["stdout"] != "hi\n" || res["exit_code"] != 0.0 {
		t.Errorf("exec: %v", res)
	}
	if raw := h.ok(200, "POST", sb+"/exec", `{"command":["raw"]}`); raw["stdout_base64"] != "/wB4" {
		t.Errorf("raw output: %v", raw)
	}
	if in := h.ok(200, "POST", sb+"/exec", `{"command":["cat"],"stdin":"text"}`); in["stdout"] != "text" {
		t.Errorf("stdin: %v", in)
	}
	p := sb + "/processes/" + h.ok(202, "POST", sb+"/exec", `{"command":["cat"],"background":true,"open_stdin":true}`)["id"].(string)
	h.ok(204, "POST", p+"/stdin?close=true", "typed", "Content-Type", "application/octet-stream")
	h.ok(200, "GET", p+"/wait?timeout_ms=1000", "")
	if o := h.ok(200, "GET", p+"/output?offset=1&wait=10", ""); o["data"] != "yped" || o["eof"] != true {
		t.Errorf("output: %v", o)
	}
	h.ok(204, "POST", p+"/signal", `{"signal":"KILL"}`)
	h.ok(200, "GET", p, "")
	h.ok(200, "GET", sb+"/processes", "")
	blocked := sb + "/processes/" + h.ok(202, "POST", sb+"/exec", `{"command":["block"],"background":true}`)["id"].(string)
	if w := h.ok(200, "GET", blocked+"/wait?timeout_ms=5", ""); w["state"] != "running" {
		t.Errorf("wait with a timeout: %v", w)
	}
	a := h.ok(201, "POST", sb+"/checkpoints", `{"name":"one"}`)["id"].(string)
	b := h.ok(201, "POST", sb+"/checkpoints", "")["id"].(string)
	h.ok(200, "GET", sb+"/checkpoints", "")
	h.ok(200, "GET", "/v1/checkpoints?name=one&sandbox="+id, "")
	h.ok(200, "GET", "/v1/checkpoints/"+a, "")
	h.ok(200, "PATCH", "/v1/checkpoints/"+a, `{"notes":"n"}`)
	h.ok(200, "POST", "/v1/checkpoints/"+a+"/verify", "")
	if v := h.ok(200, "POST", "/v1/checkpoints/"+a+"/verify", `{}`); v["trial"] != nil {
		t.Errorf("a trial that nobody asked for: %v", v)
	}
	if v := h.ok(200, "POST", "/v1/checkpoints/"+a+"/verify", `{"trial":true}`); v["trial"].(map[string]any)["duration_ms"] != 1.5 || v["id"] != a {
		t.Errorf("trial: %v", v)
	}
	if d := h.ok(200, "GET", "/v1/checkpoints/"+a+"/diff?to="+b, ""); len(d["items"].([]any)) != 5 {
		t.Errorf("diff: %v", d)
	}
	h.ok(200, "GET", sb+"/diff?path=/x", "")
	r := h.ok(200, "POST", sb+"/restore", `{"checkpoint":"`+a+`","paths":["/x"]}`)
	if r["head"] != a || r["timings"].(map[string]any)["total_ms"] != 1.5 {
		t.Errorf("restore: %v", r)
	}
	items := h.ok(201, "POST", "/v1/checkpoints/"+a+"/fork", `{"count":3}`)["items"].([]any)
	if len(items) != 3 || items[2].(map[string]any)["error"].(map[string]any)["code"] != "resource_exhausted" {
		t.Errorf("fork: %v", items)
	}
	h.ok(201, "POST", sb+"/fork", "")
	h.ok(200, "GET", "/v1/timeline", "")
	h.ok(200, "GET", "/v1/images", "")
	h.ok(201, "POST", "/v1/images", `{"ref":"docker.io/library/debian:12"}`)
	h.ok(200, "GET", "/v1/images/docker.io%2Flibrary%2Fdebian:12", "")
	h.ok(201, "POST", "/v1/images?name=x", "tar", "Content-Type", "application/x-tar")
	h.ok(204, "DELETE", "/v1/images/debian", "")
	h.ok(204, "DELETE", "/v1/checkpoints/"+b, "")
	h.ok(204, "DELETE", sb, "")
}

func TestRefusals(t *testing.T) {
	h := newHarness(t)
	h.sandbox()
	sb := "/v1/sandboxes/alice"
	for _, c := range []struct {
		status             int
		code               types.Code
		method, path, body string
		field              string
	}{
		{404, types.NotFound, "GET", "/v2", "", ""},
		{404, types.NotFound, "GET", "/v1/sandboxes/" + noSandbox, "", ""},
		{404, types.NotFound, "GET", "/v1/checkpoints/" + noCheckpoint, "", ""},
		{400, types.InvalidArgument, "GET", "/v1/sandboxes/sbx_short", "", "sandbox_id"},
		{400, types.InvalidArgument, "GET", "/v1/sandboxes/" + strings.Repeat("a", 64), "", "sandbox_id"},
		{400, types.InvalidArgument, "GET", "/v1/sandboxes/..%2f..%2fetc", "", "sandbox_id"},
		{400, types.InvalidArgument, "GET", "/v1/checkpoints/" + noSandbox, "", "checkpoint_id"},
		{405, types.MethodNotAllowed, "PUT", "/v1/sandboxes", "", ""},
		{400, types.InvalidArgument, "GET", "/v1/sandboxes?limit=0", "", "limit"},
		{400, types.InvalidArgument, "GET", "/v1/sandboxes?limit=x", "", "limit"},
		{400, types.InvalidArgument, "GET", "/v1/sandboxes?state=odd", "", "state"},
		{400, types.InvalidArgument, "GET", "/v1/sandboxes?unknown=1", "", "unknown"},
		{400, types.InvalidArgument, "GET", "/v1/sandboxes?limit=1&limit=2", "", "limit"},
		{400, types.InvalidArgument, "GET", "/v1/sandboxes?label=nothing", "", "label.0"},
		{400, types.InvalidArgument, "GET", "/v1/sandboxes?a=%zz", "", "query"},
		{400, types.InvalidArgument, "POST", "/v1/sandboxes", `{"image":"debian","extra":1}`, "extra"},
		{400, types.InvalidArgument, "POST", "/v1/sandboxes", `{"image":7}`, "image"},
		{400, types.InvalidArgument, "POST", "/v1/sandboxes", `{}`, "image"},
		{400, types.InvalidArgument, "POST", "/v1/sandboxes", `{"image":"debian"`, "body"},
		{400, types.InvalidArgument, "POST", "/v1/sandboxes", `{"image":"debian"} {}`, "body"},
		{400, types.InvalidArgument, "POST", "/v1/sandboxes", `{"image":"debian","resources":{"cpus":-1}}`, "resources.cpus"},
		{400, types.InvalidArgument, "POST", "/v1/sandboxes", `{"image":"debian","name":"-x"}`, "name"},
		{415, types.UnsupportedMediaType, "POST", "/v1/sandboxes", "", ""},
		{409, types.Conflict, "POST", "/v1/sandboxes", `{"image":"debian","name":"alice"}`, ""},
		{400, types.InvalidArgument, "POST", sb + "/exec", `{"command":[]}`, "command"},
		{422, types.CommandNotFound, "POST", sb + "/exec", `{"command":["nope"]}`, ""},
		{400, types.InvalidArgument, "POST", sb + "/exec", `{"command":["true"],"open_stdin":true}`, "open_stdin"},
		{400, types.InvalidArgument, "POST", sb + "/exec", `{"command":["true"],"tty":{"rows":0,"cols":80}}`, "tty.rows"},
		{400, types.InvalidArgument, "POST", sb + "/exec", `{"command":["true"],"tty":{"rows":24,"cols":80},"stdin":"x"}`, "tty"},
		{400, types.InvalidArgument, "POST", sb + "/exec", `{"command":["true"],"cwd":"relative"}`, "cwd"},
		{400, types.InvalidArgument, "POST", sb + "/restore", `{"checkpoint":"x"}`, "checkpoint"},
		{400, types.InvalidArgument, "POST", sb + "/restore", `{"checkpoint":"` + noCheckpoint + `","paths":["x"]}`, "paths.0"},
		{400, types.InvalidArgument, "POST", sb + "/fork", `{"count":0}`, "count"},
		{400, types.InvalidArgument, "GET", sb + "/files", "", "path"},
		{400, types.InvalidArgument, "GET", sb + "/files?path=etc", "", "path"},
		{404, types.NotFound, "GET", sb + "/files?path=/missing", "", ""},
		{400, types.InvalidArgument, "GET", "/v1/checkpoints/" + noCheckpoint + "/diff", "", "to"},
	} {
		p := h.problem(c.status, c.code, c.method, c.path, c.body)
		if c.field != "" && (p.Errors == nil || (*p.Errors)[0].Field != c.field) {
			t.Errorf("%s %s %.60s: errors %+v, want field %s", c.method, c.path, c.body, p.Errors, c.field)
		}
	}
	// Not over a connection: the server need not read what it refuses.
	large := httptest.NewRequest(http.MethodPost, "/v1/sandboxes", strings.NewReader(`{"image":"`+strings.Repeat("a", 5<<20)+`"}`))
	large.Header.Set("Content-Type", "application/json")
	large.Header.Set("Authorization", "Bearer secret")
	for _, length := range []int64{large.ContentLength, -1} {
		large.ContentLength = length
		w := httptest.NewRecorder()
		if h.handler.ServeHTTP(w, large); w.Code != 413 {
			t.Errorf("a large body (length %d): %d %s", length, w.Code, w.Body)
		}
	}
	h.problem(415, types.UnsupportedMediaType, "POST", "/v1/sandboxes", "image: debian", "Content-Type", "application/yaml")
	h.problem(406, types.NotAcceptable, "GET", sb+"/files?path=/", "", "Accept", "image/png")
	if resp, _ := h.send("PUT", "/v1/sandboxes", ""); resp.Header.Get("Allow") != "GET, POST" {
		t.Errorf("Allow: %q", resp.Header.Get("Allow"))
	}
}

func TestErrorsOfTheDomain(t *testing.T) {
	h := newHarness(t)
	for code, status := range map[sandbox.Code]int{
		sandbox.CodeBusy: 409, sandbox.CodeCorrupt: 422, sandbox.CodeLost: 410, sandbox.CodeNoSpace: 507, sandbox.CodeExhausted: 429, sandbox.CodeUnavailable: 503,
	} {
		h.svc.Err = func(string) error {
			return &sandbox.Error{Code: code, Message: "m", Running: "restore", Err: errors.New("secret")}
		}
		p := h.problem(status, types.Code(code), "GET", "/v1/sandboxes", "")
		if p.Detail != "m" || p.Running == nil || *p.Running != "restore" {
			t.Errorf("%s: %+v", code, p)
		}
	}
	h.svc.Err = func(string) error { return errors.New("secret") }
	if p := h.problem(500, types.Internal, "GET", "/v1/sandboxes", ""); strings.Contains(p.Detail, "secret") {
		t.Errorf("the cause is shown: %s", p.Detail)
	}
	h.svc.Err = func(string) error { panic("secret") }
	h.problem(500, types.Internal, "GET", "/v1/sandboxes", "")
}

func TestGuard(t *testing.T) {
	h := newHarness(t)
	h.problem(403, types.Forbidden, "GET", "/v1/sandboxes", "", "Origin", "http://evil.example")
	h.problem(403, types.Forbidden, "GET", "/v1/sandboxes", "", "Referer", "http://evil.example/x")
	h.problem(403, types.Forbidden, "GET", "/v1/sandboxes", "", "Host", "evil.example")
	for _, c := range []struct {
		path, auth, origin string
		status             int
	}{
		{"/v1/sandboxes", "", "", 401},
		{"/v1/sandboxes", "Bearer wrong", "", 401},
		{"/v1/sandboxes", "Bearer ", "", 401},
		{"/v1/sandboxes", "Basic secret", "", 401},
		{"/v1/sandboxes", "Bearer secret", "", 200},
		{"/v1/sandboxes", "bearer secret", "http://example.com", 200},
		{"/v1/sandboxes", "Bearer secret", "http://evil.example", 403},
		{"/healthz", "", "", 200},
		{"/metrics", "", "", 401},
	} {
		r := httptest.NewRequest(http.MethodGet, c.path, nil)
		r.Header.Set("Authorization", c.auth)
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		w := httptest.NewRecorder()
		h.handler.ServeHTTP(w, r)
		if w.Code != c.status {
			t.Errorf("%+v: %d %s", c, w.Code, w.Body)
		}
	}
}

func TestIdempotency(t *testing.T) {
	h := newHarness(t)
	const body = `{"image":"debian"}`
	first := h.ok(201, "POST", "/v1/sandboxes", body, "Idempotency-Key", "k")
	resp, data := h.send("POST", "/v1/sandboxes", body, "Idempotency-Key", "k")
	if resp.StatusCode != http.StatusCreated || resp.Header.Get("Idempotency-Replayed") != "true" || !strings.Contains(data, first["id"].(string)) || h.svc.Calls["Create"] != 1 {
		t.Errorf("replay: %d %v %s", resp.StatusCode, resp.Header, data)
	}
	h.problem(422, types.IdempotencyMismatch, "POST", "/v1/sandboxes", `{"image":"debian","name":"b"}`, "Idempotency-Key", "k")
	h.problem(404, types.NotFound, "POST", "/v1/sandboxes", `{"image":"gone"}`, "Idempotency-Key", "k2")
	h.problem(404, types.NotFound, "POST", "/v1/sandboxes", `{"image":"gone"}`, "Idempotency-Key", "k2")
	if h.svc.Calls["Create"] != 2 {
		t.Errorf("a refusal is decided too: %d calls", h.svc.Calls["Create"])
	}
	h.svc.Err = func(string) error { return errors.New("broken") }
	h.problem(500, types.Internal, "POST", "/v1/sandboxes", body, "Idempotency-Key", "k3")
	h.svc.Err = nil
	h.ok(201, "POST", "/v1/sandboxes", body, "Idempotency-Key", "k3")

	entered, leave := make(chan bool), make(chan bool)
	h.svc.Err = func(string) error { close(entered); <-leave; return nil }
	var wg sync.WaitGroup
	wg.Go(func() { h.ok(201, "POST", "/v1/sandboxes", body, "Idempotency-Key", "k4") })
	<-entered
	h.problem(409, types.IdempotencyInProgress, "POST", "/v1/sandboxes", body, "Idempotency-Key", "k4")
	close(leave)
	wg.Wait()
}

func TestStreamsAndDisconnect(t *testing.T) {
	h := newHarness(t)
	h.sandbox()
	_, out := h.send("POST", "/v1/sandboxes/alice/exec", `{"command":["echo","hi"]}`, "Accept", "text/event-stream")
	for _, want := range []string{"event: started\n", `"data":"hi\n"`, "event: exit\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("stream without %q:\n%s", want, out)
		}
	}
	h.svc.Err = func(m string) error {
		if m == "Subscribe" {
			return sandbox.Errorf(sandbox.CodeUnavailable, "stopping")
		}
		return nil
	}
	_, out = h.send("GET", "/v1/events", "", "Last-Event-ID", "1")
	if strings.Contains(out, "id: 1\n") || !strings.Contains(out, "id: 2\nevent: sandbox.created\n") || !strings.Contains(out, `"code":"unavailable"`) {
		t.Errorf("events:\n%s", out)
	}
	if _, out = h.send("POST", "/v1/images", `{"ref":"x"}`, "Accept", "text/event-stream"); !strings.Contains(out, "event: progress") || !strings.Contains(out, "event: image") {
		t.Errorf("pull:\n%s", out)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/v1/sandboxes/alice/exec", strings.NewReader(`{"command":["block"]}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	resp, err := h.client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	cancel()
	eventually(t, "the abandoned command is killed", func() bool { return h.svc.Signalled("9") })
}

func TestFiles(t *testing.T) {
	h := newHarness(t)
	h.sandbox()
	at := "/v1/sandboxes/alice/files?path="
	h.ok(200, "PUT", at+"/d/f&parents=true&mode=0600", "0123456789", "Content-Type", "application/octet-stream")
	big := strings.Repeat("x", 300<<10)
	h.ok(200, "PUT", at+"/big", big, "Content-Type", "application/octet-stream")
	if _, got := h.send("GET", at+"/big", ""); got != big {
		t.Errorf("a large file came back as %d bytes", len(got))
	}
	resp, got := h.send("GET", at+"/d/f", "", "Range", "bytes=2-4")
	if resp.StatusCode != http.StatusPartialContent || got != "234" || resp.Header.Get("Content-Range") != "bytes 2-4/10" {
		t.Errorf("range: %d %q %v", resp.StatusCode, got, resp.Header)
	}
	h.problem(416, types.RangeNotSatisfiable, "GET", at+"/d/f", "", "Range", "bytes=20-")
	h.ok(200, "PUT", at+"/new&type=directory", "")
	l := h.ok(200, "GET", at+"/", "")
	if len(l["items"].([]any)) != 3 {
		t.Errorf("list: %v", l)
	}
	if s := h.ok(200, "GET", at+"/d/f&stat=true", ""); s["file"].(map[string]any)["mode"] != "0600" {
		t.Errorf("stat: %v", s)
	}
	_, tar := h.send("GET", at+"/d", "", "Accept", "application/x-tar")
	h.ok(200, "PUT", at+"/copy&parents=true", tar, "Content-Type", "application/x-tar")
	if _, got := h.send("GET", at+"/copy/f", ""); got != "0123456789" {
		t.Errorf("after tar out and in: %q", got)
	}
	h.problem(400, types.InvalidArgument, "PUT", at+"/copy", "junk that is no tar", "Content-Type", "application/x-tar")
	h.problem(409, types.Conflict, "DELETE", at+"/d", "")
	h.ok(204, "DELETE", at+"/d&recursive=true", "")
}

func TestTooMany(t *testing.T) {
	entered, leave := make(chan bool, 1), make(chan bool)
	h := newHarness(t, func(o *api.Options) {
		o.Limits = api.Limits{Requests: 1, Queue: 1, Wait: 10 * time.Second}
	})
	h.svc.Err = func(string) error { entered <- true; <-leave; return nil }
	var wg sync.WaitGroup
	wg.Go(func() { h.ok(200, "GET", "/v1/sandboxes", "") })
	<-entered
	// One more may wait; of the two that follow one must be turned away at once.
	statuses := make(chan string, 2)
	for range 2 {
		wg.Go(func() {
			resp, _ := h.send("GET", "/v1/sandboxes", "")
			statuses <- resp.Status[:3] + resp.Header.Get("Retry-After")
		})
	}
	if s := <-statuses; s != "5031" {
		t.Errorf("the third request: %s", s)
	}
	h.ok(200, "GET", "/healthz", "")
	close(leave)
	<-entered
	if s := <-statuses; s != "200" {
		t.Errorf("the waiting request: %s", s)
	}
	wg.Wait()
}
