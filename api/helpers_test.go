package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"go.uber.org/goleak"

	"cairn/api"
	"cairn/api/apitest"
	"cairn/api/types"
	"cairn/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The domain serves the API as it is.
var _ api.Service = (*sandbox.Service)(nil)

type harness struct {
	t       *testing.T
	svc     *apitest.Service
	handler http.Handler
	server  *httptest.Server
	router  routers.Router
}

func newHarness(t *testing.T, change ...func(*api.Options)) *harness {
	t.Helper()
	svc := apitest.New(t)
	o := api.Options{
		Service: svc, Images: svc, Idempotency: &memory{m: map[string]*api.Record{}}, SpoolDir: t.TempDir(),
		Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
		Tokens: []api.Token{{Name: "one", Secret: "secret"}, {Name: "none"}},
		Info: func(context.Context) (types.Info, error) {
			i := types.Info{Version: "1", Features: map[string]string{}, Limits: map[string]int64{}, StartedAt: time.Now()}
			i.Pool.Warm = map[string]int{}
			return i, nil
		},
	}
	for _, f := range change {
		f(&o)
	}
	handler, err := api.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(handler)
	srv.Listener.Close()
	srv.Listener = l
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	srv.Start()
	t.Cleanup(srv.Close)
	doc, err := openapi3.NewLoader().LoadFromData(api.Spec)
	if err != nil {
		t.Fatal(err)
	}
	doc.Servers = nil
	router, err := legacy.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	return &harness{t, svc, handler, srv, router}
}

func (h *harness) client() *http.Client {
	addr := h.server.Listener.Addr()
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, addr.Network(), addr.String())
	}}
	return &http.Client{Transport: tr}
}

// send makes a request and returns the answer with its body read. JSON answers are
// validated against the contract.
func (h *harness) send(method, path, body string, headers ...string) (*http.Response, string) {
	h.t.Helper()
	req, err := http.NewRequestWithContext(h.t.Context(), method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if req.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	resp, err := h.client().Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatalf("%s %s: %v", method, path, err)
	}
	h.checkAnswer(req, resp, data)
	return resp, string(data)
}

func (h *harness) checkAnswer(req *http.Request, resp *http.Response, data []byte) {
	h.t.Helper()
	if !strings.Contains(resp.Header.Get("Content-Type"), "json") {
		return
	}
	route, params, err := h.router.FindRoute(req)
	if err != nil {
		return // not of the contract: it must be a problem, which callers check
	}
	in := &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route}
	err = openapi3filter.ValidateResponse(req.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: resp.StatusCode, Header: resp.Header, Body: io.NopCloser(bytes.NewReader(data)),
	})
	if err != nil {
		h.t.Errorf("%s %s: answer against the contract: %v\n%s", req.Method, req.URL, err, data)
	}
}

// ok makes a request that must succeed.
func (h *harness) ok(status int, method, path, body string, headers ...string) map[string]any {
	h.t.Helper()
	resp, data := h.send(method, path, body, headers...)
	if resp.StatusCode != status {
		h.t.Fatalf("%s %s: status %d, want %d: %s", method, path, resp.StatusCode, status, data)
	}
	var v map[string]any
	if strings.Contains(resp.Header.Get("Content-Type"), "json") {
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			h.t.Fatal(err)
		}
	}
	return v
}

// problem makes a request that must be refused.
func (h *harness) problem(status int, code types.Code, method, path, body string, headers ...string) types.Problem {
	h.t.Helper()
	resp, data := h.send(method, path, body, headers...)
	var p types.Problem
	if err := json.Unmarshal([]byte(data), &p); err != nil {
		h.t.Fatalf("%s %s: not a problem (status %d): %s", method, path, resp.StatusCode, data)
	}
	if resp.StatusCode != status || p.Code != code || p.Status != status || resp.Header.Get("Content-Type") != "application/problem+json" {
		h.t.Errorf("%s %s %s: %d %s, want %d %s: %s", method, path, body, resp.StatusCode, p.Code, status, code, data)
	}
	if resp.Header.Get("Idempotency-Replayed") == "" && (p.RequestId == nil || *p.RequestId != resp.Header.Get("X-Request-Id")) {
		h.t.Errorf("%s %s: request id %v is not the header's", method, path, p.RequestId)
	}
	return p
}

func (h *harness) sandbox() string {
	h.t.Helper()
	return h.ok(201, "POST", "/v1/sandboxes", `{"image":"debian","name":"alice","labels":{"a":"b"}}`)["id"].(string)
}

// memory keeps idempotency records.
type memory struct {
	mu sync.Mutex
	m  map[string]*api.Record
}

func (m *memory) Reserve(_ context.Context, scope, key, hash string) (*api.Record, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.m[scope+key]; r != nil {
		return r, false, nil
	}
	m.m[scope+key] = &api.Record{Hash: hash}
	return nil, true, nil
}

func (m *memory) Complete(_ context.Context, scope, key string, status int, header http.Header, body []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.m[scope+key] = &api.Record{Hash: m.m[scope+key].Hash, Status: status, Header: header, Body: bytes.Clone(body)}
	return nil
}

func (m *memory) Release(_ context.Context, scope, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.m, scope+key)
	return nil
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("never: " + what)
		}
	}
}
