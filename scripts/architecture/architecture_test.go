package architecture

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "cairn"

// pkg is what go list says of a package.
type pkg struct {
	ImportPath   string
	Dir          string
	Doc          string
	Name         string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Doc,Name,Imports,TestImports,XTestImports", module+"/...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var list []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	if len(list) < 10 {
		t.Fatalf("only %d packages were found", len(list))
	}
	return list
}

// below says whether p is dir or a package below it.
func below(p, dir string) bool {
	return p == module+"/"+dir || strings.HasPrefix(p, module+"/"+dir+"/")
}

// layers says, for the packages below a directory, which packages of Cairn they
// may import. The first rule that fits counts.
var layers = []struct {
	dir     string
	may     []string
	outside []string // other modules that may be used; nil: any
}{
	{"sandbox/guest", []string{"sandbox/guest", "sandbox/stem/wire"}, []string{"golang.org/x/sys"}},
	{"sandbox/stem", []string{"sandbox/stem"}, []string{"golang.org/x/sys"}},
	{"sandbox/files", []string{"sandbox/files"}, []string{"golang.org/x/sys", "github.com/aymanbagabas/go-udiff"}},
	{"sandbox/failpoint", nil, []string{}},
	{"sandbox", []string{"sandbox"}, []string{}},
	{"overlay", []string{"overlay"}, nil},
	{"criu", []string{"criu", "sandbox"}, nil},
	{"daemon/config", []string{"daemon/config"}, nil},
	{"daemon/cgroup", []string{"daemon/cgroup"}, nil},
	{"daemon/network", []string{"daemon/network"}, nil},
	{"daemon/supervise", []string{"daemon/supervise"}, nil},
	{"daemon/store", []string{"daemon/store", "sandbox"}, nil},
	{"daemon/image", []string{"daemon/image", "overlay", "sandbox"}, nil},
	{"daemon/webhook", []string{"daemon/webhook", "sandbox"}, []string{}},
	{"daemon/runtime", []string{"daemon/runtime", "daemon/cgroup", "sandbox"}, nil},
	{"daemon", []string{"daemon", "sandbox", "overlay", "criu", "api", "api/types"}, nil},
	{"api/types", nil, nil},
	{"api/client", []string{"api/types"}, nil},
	{"api", []string{"api", "sandbox"}, nil},
	{"cmd/cairn", []string{"cmd/cairn", "api/client", "api/types", "scripts/bench/baseline", "scripts/bench/rig"}, nil},
	{"cmd/cairnd", []string{"cmd/cairnd", "daemon", "sandbox"}, nil},
	{"cmd/cairn-init", []string{"sandbox/guest"}, nil},
	{"cmd/cairn-criu", []string{"criu"}, nil},
	{"scripts", []string{"scripts", "api/client", "api/types", "daemon/supervise", "daemon", "sandbox", "overlay"}, nil},
}

func TestImportsPointInwards(t *testing.T) {
	for _, p := range packages(t) {
		i := slices.IndexFunc(layers, func(l struct {
			dir     string
			may     []string
			outside []string
		},
		) bool {
			return below(p.ImportPath, l.dir)
		})
		if i < 0 {
			t.Errorf("%s has no rule: say what it may import", p.ImportPath)
			continue
		}
		rule := layers[i]
		for _, imp := range p.Imports {
			switch {
			case below(imp, "."), imp == module, strings.HasPrefix(imp, module+"/"):
				if !slices.ContainsFunc(rule.may, func(dir string) bool { return below(imp, dir) }) {
					t.Errorf("%s must not import %s", p.ImportPath, imp)
				}
			case strings.Contains(strings.Split(imp, "/")[0], "."):
				if rule.outside != nil && !slices.ContainsFunc(rule.outside, func(m string) bool { return strings.HasPrefix(imp, m) }) {
					t.Errorf("%s must not import %s", p.ImportPath, imp)
				}
			}
		}
	}
}

func TestPackagesSayWhatTheyAreFor(t *testing.T) {
	for _, p := range packages(t) {
		if p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

// files visits every Go file that people write.
func files(t *testing.T, visit func(path string, set *token.FileSet, f *ast.File)) {
	t.Helper()
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"bin", "build", "testdata"}, d.Name())):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".gen.go"):
			return nil
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		visit(path, set, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestNoHiddenState(t *testing.T) {
	files(t, func(path string, set *token.FileSet, f *ast.File) {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: init() hides what runs when", set.Position(fn.Pos()))
			}
		}
	})
}

func TestTestsDoNotSleep(t *testing.T) {
	files(t, func(path string, set *token.FileSet, f *ast.File) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		// In a property test Skip only draws again.
		discards := slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"pgregory.net/rapid"` })
		ast.Inspect(f, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				x, ok := sel.X.(*ast.Ident)
				if ok && x.Name == "time" && sel.Sel.Name == "Sleep" {
					t.Errorf("%s: time.Sleep in a test: wait for what is expected", set.Position(n.Pos()))
				}
				if ok && x.Name == "t" && !discards && (sel.Sel.Name == "Skip" || sel.Sel.Name == "Skipf") {
					t.Errorf("%s: a test that skips itself proves nothing", set.Position(n.Pos()))
				}
			}
			return true
		})
	})
}
