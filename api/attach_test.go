package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"cairn/api/client"
	"cairn/api/types"
)

const patience = 10 * time.Second

// attacher is a client of the harness, with a sandbox.
func (h *harness) attacher() (*client.Client, string) {
	h.t.Helper()
	c, err := client.Dial(client.Options{Host: "unix://" + h.server.Listener.Addr().String()})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { client.Close(c) })
	sb, err := client.Get[types.Sandbox](c.CreateSandbox(h.t.Context(), nil, types.CreateSandbox{Image: "debian"}))
	if err != nil {
		h.t.Fatal(err)
	}
	return c, sb.Id
}

func (h *harness) start(c *client.Client, sb, command string) string {
	h.t.Helper()
	p, err := client.Get[types.Process](c.Exec(h.t.Context(), sb, nil, types.Exec{
		Command: []string{command}, Background: new(true), Tty: &types.TerminalSize{Rows: 24, Cols: 80},
	}))
	if err != nil || !p.Tty {
		h.t.Fatalf("%+v, %v", p, err)
	}
	return p.Id
}

// hear reads until the output has text at its end, and returns all of it.
func hear(t *testing.T, a *client.Attachment, text string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var all strings.Builder
	for !strings.HasSuffix(all.String(), text) {
		ev, err := a.Next(ctx)
		if err != nil || ev.Exit != nil || ev.Problem != nil {
			t.Fatalf("%v, exit %v, problem %v after %d bytes; want %q", err, ev.Exit, ev.Problem, all.Len(), text)
		}
		all.Write(ev.Output)
	}
	return all.String()
}

func attach(t *testing.T, c *client.Client, sb, id string, p *types.AttachProcessParams) *client.Attachment {
	t.Helper()
	a, err := c.Attach(t.Context(), sb, id, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

func TestAttach(t *testing.T) {
	h := newHarness(t)
	c, sb := h.attacher()
	id := h.start(c, sb, "cat")
	one, two := attach(t, c, sb, id, nil), attach(t, c, sb, id, nil)
	if one.Process.Id != id || !one.Process.Tty || one.Offset() != 0 {
		t.Fatalf("%+v", one)
	}
	if err := one.Write(t.Context(), []byte("hello")); err != nil {
		t.Fatal(err)
	}
	hear(t, one, "hello")
	hear(t, two, "hello")
	if err := two.Write(t.Context(), []byte("\xff again")); err != nil {
		t.Fatal(err)
	}
	hear(t, one, "\xff again")

	// Detached, with input on the way, and attached again where it was left.
	at := one.Offset()
	if err := errors.Join(one.Write(t.Context(), []byte(" last words")), one.Close()); err != nil {
		t.Fatal(err)
	}
	hear(t, two, " last words")
	again := attach(t, c, sb, id, &types.AttachProcessParams{Offset: &at})
	if got := hear(t, again, "words"); got != " last words" {
		t.Fatalf("%q", got)
	}
	tail := attach(t, c, sb, id, &types.AttachProcessParams{Tail: new(int64(5))})
	if got := hear(t, tail, "words"); got != "words" {
		t.Fatalf("%q", got)
	}
	if err := tail.CloseStdin(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, a := range []*client.Attachment{two, again} {
		for {
			ev, err := a.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if ev.Exit != nil {
				if ev.Exit.ExitCode != 0 || ev.Exit.State != types.ProcessStateExited {
					t.Fatalf("%+v", ev.Exit)
				}
				break
			}
		}
		if _, err := a.Next(t.Context()); !errors.Is(err, client.ErrCutOff) {
			t.Fatal(err)
		}
	}
	ended := attach(t, c, sb, id, nil)
	if ended.Process.State != types.ProcessStateExited {
		t.Fatalf("%+v", ended.Process)
	}
	hear(t, ended, "last words")
}

func TestResize(t *testing.T) {
	h := newHarness(t)
	c, sb := h.attacher()
	id := h.start(c, sb, "size")
	a := attach(t, c, sb, id, nil)
	hear(t, a, "size 24 80\r\n")
	if err := a.Resize(t.Context(), types.TerminalSize{Rows: 5, Cols: 6}); err != nil {
		t.Fatal(err)
	}
	hear(t, a, "size 5 6\r\n")
	path := "/v1/sandboxes/" + sb + "/processes/" + id + "/resize"
	if resp, body := h.send(http.MethodPost, path, `{"rows":7,"cols":8}`); resp.StatusCode != http.StatusNoContent {
		t.Fatal(resp.Status, body)
	}
	hear(t, a, "size 7 8\r\n")
	for _, bad := range []string{`{"rows":0,"cols":8}`, `{"rows":7}`, `{"rows":7,"cols":65536}`, `{}`, ``} {
		if resp, body := h.send(http.MethodPost, path, bad); resp.StatusCode != http.StatusBadRequest && bad != "" {
			t.Error(bad, resp.Status, body)
		}
	}
}

func TestAttachSignals(t *testing.T) {
	h := newHarness(t)
	c, sb := h.attacher()
	for _, s := range []string{"SIGINT", "2", "INT"} {
		id := h.start(c, sb, "block")
		a := attach(t, c, sb, id, nil)
		if err := a.Signal(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		ev, err := a.Next(t.Context())
		if err != nil || ev.Exit == nil || ev.Exit.ExitCode != 130 {
			t.Fatalf("%s: %+v, %v", s, ev, err)
		}
	}
}

func TestAttachRefusals(t *testing.T) {
	h := newHarness(t)
	c, sb := h.attacher()
	id := h.start(c, sb, "cat")
	path := "/v1/sandboxes/" + sb + "/processes/" + id + "/attach"
	upgrade := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}
	for _, c := range []struct {
		status  int
		path    string
		headers []string
	}{
		{400, path, nil},
		{403, path, append([]string{"Origin", "http://localhost"}, upgrade...)},
		{403, path, append([]string{"Host", "evil.example"}, upgrade...)},
		{400, path + "?offset=-1", upgrade},
		{400, path + "?offset=1&tail=1", upgrade},
		{400, path + "?stream=stdin", upgrade},
		{404, "/v1/sandboxes/" + sb + "/processes/exec_01J00000000000000000000000/attach", upgrade},
	} {
		resp, body := h.send(http.MethodGet, c.path, "", c.headers...)
		if resp.StatusCode != c.status {
			t.Errorf("%s %v: %s\n%s", c.path, c.headers, resp.Status, body)
		}
	}
	a := attach(t, c, sb, id, nil)
	conn := rawAttach(t, h, path)
	for _, text := range []string{
		"", "x", "[]", `{"resize":{"rows":0,"cols":1}}`, `{"resize":{"rows":65536,"cols":1}}`, `{"resize":{}}`, `{"signal":0}`, `{"signal":65}`,
		`{"signal":"SIGNOTHING"}`, `{"signal":{}}`, `{"what":1}`, `{} {}`,
	} {
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
		var m types.AttachMessage
		_, data, err := conn.Read(t.Context())
		if err != nil || json.Unmarshal(data, &m) != nil || m.Problem == nil || m.Problem.Code != types.InvalidArgument {
			t.Fatalf("%q: %s, %v", text, data, err)
		}
	}
	// It is still of use.
	if err := conn.Write(t.Context(), websocket.MessageBinary, []byte("ok")); err != nil {
		t.Fatal(err)
	}
	hear(t, a, "ok")
	if _, _, err := conn.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	// But not for more than one message may hold.
	if err := conn.Write(t.Context(), websocket.MessageBinary, make([]byte, 64<<10+1)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := conn.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
		t.Fatal(err)
	}
}

// rawAttach is an attachment without the client; its first message is read.
func rawAttach(t *testing.T, h *harness, path string) *websocket.Conn {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), "http://localhost"+path, &websocket.DialOptions{HTTPClient: h.client()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	if _, _, err := conn.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestAttachByTCP(t *testing.T) {
	h := newHarness(t)
	c, sb := h.attacher()
	id := h.start(c, sb, "cat")
	srv := httptest.NewServer(h.handler)
	defer srv.Close()
	for token, ok := range map[string]bool{"secret": true, "": false, "wrong": false} {
		remote, err := client.Dial(client.Options{Host: srv.URL, Token: token})
		if err != nil {
			t.Fatal(err)
		}
		a, err := remote.Attach(t.Context(), sb, id, nil)
		switch {
		case ok && err != nil:
			t.Fatal(err)
		case !ok && client.CodeOf(err) != types.Unauthorized:
			t.Fatalf("token %q: %v", token, err)
		case ok:
			if err := a.Write(t.Context(), []byte("by TCP")); err != nil {
				t.Fatal(err)
			}
			hear(t, a, "by TCP")
			_ = a.Close()
		}
		client.Close(remote)
	}
	_, resp, err := websocket.Dial(t.Context(), srv.URL+"/v1/sandboxes/"+sb+"/processes/"+id+"/attach", &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer secret"}, "Origin": {"http://evil.example"}},
	})
	if err == nil || resp.StatusCode != http.StatusForbidden {
		t.Fatal(err)
	}
}

// A caller that reads nothing holds up nobody else, and one that is cut off leaves
// nothing behind (which the package's leak check would find).
func TestAttachCutOff(t *testing.T) {
	h := newHarness(t)
	c, sb := h.attacher()
	id := h.start(c, sb, "cat")
	path := "/v1/sandboxes/" + sb + "/processes/" + id + "/attach"
	deaf := rawAttach(t, h, path)
	a := attach(t, c, sb, id, nil)
	chunk := strings.Repeat("x", 32<<10)
	for range 64 {
		if err := a.Write(t.Context(), []byte(chunk)); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Write(t.Context(), []byte("the end")); err != nil {
		t.Fatal(err)
	}
	if n := len(hear(t, a, "the end")); n != 64*len(chunk)+7 {
		t.Fatal(n)
	}
	if err := deaf.CloseNow(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cut, err := c.Attach(ctx, sb, id, nil)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := cut.Next(ctx); !errors.Is(err, client.ErrCutOff) && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, err := client.Get[types.Process](c.GetProcess(t.Context(), sb, id)); err != nil {
		t.Fatal(err)
	}
}
