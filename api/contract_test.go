package api_test

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/go-chi/chi/v5"

	"cairn/api"
	"cairn/api/apitest"
	"cairn/api/types"
	"cairn/sandbox"
)

func contract(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestContractIsValid(t *testing.T) {
	doc := contract(t)
	if err := doc.Validate(t.Context()); err != nil {
		t.Error(err)
	}
	for path, item := range doc.Paths.Map() {
		for method, o := range item.Operations() {
			if o.OperationID == "" || o.Summary == "" || len(o.Tags) == 0 || o.Responses.Default() == nil {
				t.Errorf("%s %s: operationId, summary, tag and default response are needed", method, path)
			}
			key := slices.ContainsFunc(o.Parameters, func(p *openapi3.ParameterRef) bool { return p.Value.Name == "Idempotency-Key" })
			if key != (method == http.MethodPost) {
				t.Errorf("%s %s: Idempotency-Key goes with POST", method, path)
			}
		}
	}
}

func TestRoutesAreTheContract(t *testing.T) {
	h := newHarness(t)
	var routes, documented []string
	err := chi.Walk(h.handler.(chi.Routes), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		routes = append(routes, method+" "+route)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, item := range contract(t).Paths.Map() {
		for method := range item.Operations() {
			documented = append(documented, method+" "+path)
		}
	}
	slices.Sort(routes)
	slices.Sort(documented)
	if !slices.Equal(routes, documented) {
		t.Errorf("routes\n%s\ncontract\n%s", strings.Join(routes, "\n"), strings.Join(documented, "\n"))
	}
}

// TestCodesAreDocumented compares the codes in the source with the contract's.
func TestCodesAreDocumented(t *testing.T) {
	schema := contract(t).Components.Schemas["Code"].Value
	var documented []string
	for _, v := range schema.Enum {
		documented = append(documented, v.(string))
		if !strings.Contains(schema.Description, fmt.Sprintf("| `%s` |", v)) {
			t.Errorf("%s is not in the table", v)
		}
	}
	codes := append(constants(t, "../sandbox/errors.go"), constants(t, "problem.go")...)
	slices.Sort(codes)
	slices.Sort(documented)
	if !slices.Equal(codes, documented) {
		t.Errorf("source %v\ncontract %v", codes, documented)
	}
}

func constants(t *testing.T, file string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			if lit, ok := v.Values[0].(*ast.BasicLit); ok && strings.HasPrefix(strings.ToLower(v.Names[0].Name), "code") {
				text, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				found = append(found, text)
			}
		}
	}
	return found
}

func TestGeneratedCodeIsCurrent(t *testing.T) {
	dir := t.TempDir()
	gen := filepath.Join(dir, "internal", "gen")
	if err := os.CopyFS(gen, os.DirFS("internal/gen")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "openapi.yaml"), api.Spec, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, pkg := range []string{"types", "client"} {
		if err := os.Mkdir(filepath.Join(dir, pkg), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for config, file := range map[string]string{"types": "types/types.gen.go", "server": "server.gen.go", "client": "client/client.gen.go"} {
		cmd := exec.CommandContext(t.Context(), "go", "-C", gen, "tool", "oapi-codegen", "-config", config+".yaml", "../../openapi.yaml")
		if msg, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, msg)
		}
		want, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the contract gives: run go generate ./api", file)
		}
	}
}

// FuzzRequest sends anything: an answer must come, and never be the daemon's fault.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "/v1/sandboxes/alice", "limit=1", "")
	f.Add("POST", "/v1/sandboxes", "", `{"image":"debian","resources":{"cpus":1e400}}`)
	f.Add("POST", "/v1/sandboxes/alice/exec", "", `{"command":["cat"],"stdin_base64":"!"}`)
	f.Add("GET", "/v1/images/%2e%2e%2f", "%zz", "")
	f.Add("PUT", "/v1/sandboxes/alice/files", "path=/..", "x")
	f.Fuzz(func(t *testing.T, method, path, query, body string) {
		if path == "/v1/events" || strings.Contains(body, "block") {
			return // they rightly take for ever
		}
		h := newHarness(t)
		r := httptest.NewRequest(http.MethodGet, "/", strings.NewReader(body))
		r.Method, r.URL.Path, r.URL.RawPath, r.URL.RawQuery = method, path, "", query
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer secret")
		w := httptest.NewRecorder()
		h.handler.ServeHTTP(w, r)
		if w.Code == 500 {
			t.Errorf("%s %q ?%s %q: %s", method, path, query, body, w.Body)
		}
	})
}

// BenchmarkExec is what the API itself adds to a command.
func BenchmarkExec(b *testing.B) {
	svc := apitest.New(b)
	h, err := api.NewServer(api.Options{
		Service: svc, Images: svc, Tokens: []api.Token{{Name: "one", Secret: "secret"}},
		Info: func(context.Context) (types.Info, error) { return types.Info{}, nil },
	})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := svc.Create(b.Context(), sandbox.CreateRequest{Image: "debian", Name: "alice"}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest(http.MethodPost, "/v1/sandboxes/alice/exec", strings.NewReader(`{"command":["true"],"env":{"A":"b"},"cwd":"/"}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer secret")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != 200 {
			b.Fatal(w.Body)
		}
	}
}
