package webhook_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cairn/daemon/webhook"
	"cairn/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func client(t *testing.T, allow ...string) *webhook.Client {
	t.Helper()
	c, err := webhook.New(allow)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestOnlyWhatIsBelowAPrefix(t *testing.T) {
	c := client(t, "https://hooks.example.com/cairn", "http://10.0.0.1:8080", "http://[::1]:80/a/")
	for _, address := range []string{
		"https://hooks.example.com/cairn", "https://hooks.example.com/cairn/", "https://hooks.example.com/cairn/x?token=1",
		"https://HOOKS.example.com:443/cairn/x", "HTTPS://hooks.example.com/cairn/x", "http://10.0.0.1:8080", "http://10.0.0.1:8080/any", "http://[::1]/a/b", "http://[::1]/a",
	} {
		if err := c.Check(address); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	for address, code := range map[string]sandbox.Code{
		"https://hooks.example.com/cairnx":              sandbox.CodeForbidden,
		"https://hooks.example.com/":                    sandbox.CodeForbidden,
		"http://hooks.example.com/cairn":                sandbox.CodeForbidden,
		"https://hooks.example.com:8443/cairn":          sandbox.CodeForbidden,
		"https://hooks.example.com.evil.org/cairn":      sandbox.CodeForbidden,
		"https://evil.org/https://hooks.example.com/":   sandbox.CodeForbidden,
		"http://10.0.0.1:80800/x":                       sandbox.CodeForbidden,
		"http://10.0.0.1/x":                             sandbox.CodeForbidden,
		"http://10.0.0.10:8080/x":                       sandbox.CodeForbidden,
		"https://hooks.example.com/cairn/../admin":      sandbox.CodeInvalid,
		"https://hooks.example.com/cairn/..":            sandbox.CodeInvalid,
		"https://hooks.example.com/cairn/%2e%2e/admin":  sandbox.CodeInvalid,
		"https://hooks.example.com/cairn/.%2E/admin":    sandbox.CodeInvalid,
		"https://hooks.example.com/cairn%2f..%2fadmin":  sandbox.CodeInvalid,
		`https://hooks.example.com/cairn/\admin`:        sandbox.CodeInvalid,
		"https://hooks.example.com@evil.org/cairn":      sandbox.CodeInvalid,
		"https://u:p@hooks.example.com/cairn":           sandbox.CodeInvalid,
		"https://hooks.example.com/cairn#x":             sandbox.CodeInvalid,
		"https://hooks.example.com/cairn#":              sandbox.CodeInvalid,
		"ftp://hooks.example.com/cairn":                 sandbox.CodeInvalid,
		"https:hooks.example.com/cairn":                 sandbox.CodeInvalid,
		"//hooks.example.com/cairn":                     sandbox.CodeInvalid,
		"https:///cairn":                                sandbox.CodeInvalid,
		"https://hooks.example.com/cairn\r\nX-Other: 1": sandbox.CodeInvalid,
		"": sandbox.CodeInvalid,
	} {
		if err := c.Check(address); sandbox.CodeOf(err) != code {
			t.Errorf("%q: %v, want %s", address, err, code)
		}
	}
	if err := client(t).Check("http://localhost/"); sandbox.CodeOf(err) != sandbox.CodeForbidden {
		t.Errorf("nothing is allowed: %v", err)
	}
}

func TestWrongPrefixes(t *testing.T) {
	for _, a := range []string{"", "hooks.example.com", "ftp://x/", "https://u@x/", "https://x/?q", "https://x/a?q=1", "https://x/#f", "https://x/../y"} {
		if _, err := webhook.New([]string{a}); err == nil {
			t.Errorf("%q is accepted", a)
		}
	}
}

func TestPost(t *testing.T) {
	var asked []string
	var body, key, kind string
	release := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/h/ok", func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		body, key, kind = string(b), r.Header.Get("Idempotency-Key"), r.Header.Get("Content-Type")
		w.WriteHeader(http.StatusAccepted)
	})
	mux.HandleFunc("/h/moved", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("/elsewhere", func(http.ResponseWriter, *http.Request) { asked = append(asked, "elsewhere") })
	mux.HandleFunc("/h/broken", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	mux.HandleFunc("/h/slow", func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("/h/endless", func(w http.ResponseWriter, _ *http.Request) {
		for chunk := []byte(strings.Repeat("x", 64<<10)); ; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/h/headers", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Large", strings.Repeat("x", 128<<10))
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	defer close(release)
	c := client(t, srv.URL+"/h")
	post := func(path string) error { return c.Post(t.Context(), srv.URL+path, "hook_1", []byte(`{"event":"x"}`)) }

	if err := post("/h/ok"); err != nil || body != `{"event":"x"}` || key != "hook_1" || kind != "application/json" {
		t.Errorf("%v; the other side got %q %q %q", err, body, key, kind)
	}
	if err := post("/h/endless"); err != nil {
		t.Errorf("an answer without end: %v", err)
	}
	for path, want := range map[string]string{"/h/moved": "307", "/h/broken": "502", "/h/headers": "no answer", "/h/none": "404"} {
		if err := post(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
	if err := post("/elsewhere"); sandbox.CodeOf(err) != sandbox.CodeForbidden {
		t.Errorf("not allowed: %v", err)
	}
	if len(asked) > 0 {
		t.Error("a redirect was followed, or what is not allowed was asked")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := c.Post(ctx, srv.URL+"/h/slow", "hook_1", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a slow answer: %v", err)
	}
}

func FuzzCheck(f *testing.F) {
	f.Add("https://hooks.example.com/cairn/x")
	f.Add("https://hooks.example.com@evil.org/cairn")
	c, err := webhook.New([]string{"https://hooks.example.com/cairn"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, address string) {
		if c.Check(address) != nil {
			return
		}
		req, err := http.NewRequest(http.MethodPost, address, nil)
		if err != nil {
			t.Fatalf("%q is allowed and cannot be asked: %v", address, err)
		}
		if h := strings.ToLower(req.URL.Hostname()); h != "hooks.example.com" || !strings.HasPrefix(req.URL.RequestURI(), "/cairn") {
			t.Errorf("%q goes to %s", address, req.URL)
		}
	})
}
