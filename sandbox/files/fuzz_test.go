package files

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fuzzRoot is a Root in a directory beside which nothing may appear.
func fuzzRoot(t *testing.T) (r *Root, check func()) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+"/root/dir/sub", 0o755))
	must(t, os.WriteFile(dir+"/root/file", []byte("x"), 0o644))
	must(t, os.WriteFile(dir+"/secret", []byte("secret"), 0o600))
	must(t, os.Symlink("../..", dir+"/root/dir/up"))
	must(t, os.Symlink(dir, dir+"/root/out"))
	f, err := os.Open(dir + "/root")
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	limits := Limits{FileBytes: 1 << 16, TarBytes: 1 << 16, TarEntries: 64, Depth: 16}
	return New(f, Options{Limits: limits}), func() {
		t.Helper()
		e, err := os.ReadDir(dir)
		must(t, err)
		b, err := os.ReadFile(dir + "/secret")
		must(t, err)
		if len(e) != 2 || string(b) != "secret" {
			t.Errorf("outside changed: %v %q", e, b)
		}
		noTemps(t, dir)
	}
}

func FuzzTarIn(f *testing.F) {
	for _, e := range [][]entry{
		{{name: "a", content: "x"}, {name: "b", kind: '1', link: "a"}},
		{{name: "s", kind: '2', link: ".."}, {name: "s/x", content: "x"}},
		{{name: "d/", kind: '5', mode: 0o755}, {name: "d/../../x"}},
		{{name: "out/x"}, {name: "dir/up/x"}},
		{{name: "p", kind: '6'}, {name: "x", pax: map[string]string{"SCHILY.xattr.user.k": "v"}}},
	} {
		b, err := io.ReadAll(tarOf(f, e...))
		must(f, err)
		f.Add(b)
	}
	b, err := io.ReadAll(sparseBomb())
	must(f, err)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, check := fuzzRoot(t)
		_, _ = r.TarIn(context.Background(), "/", bytes.NewReader(b), TarInOptions{})
		check()
		// What was unpacked can be archived and removed.
		if _, err := r.TarOut(context.Background(), "/", io.Discard); err != nil && codeOf(err) == ErrInternal {
			t.Errorf("tar out: %v", err)
		}
	})
}

func FuzzPaths(f *testing.F) {
	for _, p := range []string{"/", "", "..", "../x", "/out/secret", "dir/up/../secret", "dir//up/./x/", "a\x00b", "\xff", strings.Repeat("/dir/..", 700)} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		r, check := fuzzRoot(t)
		ctx := context.Background()
		if file, err := r.Open(ctx, p); err == nil {
			b, err := io.ReadAll(file)
			if err != nil || string(b) == "secret" {
				t.Errorf("%q: read %q %v", p, b, err)
			}
			must(t, file.Close())
		}
		_, _ = r.Stat(ctx, p, false)
		_, _ = r.List(ctx, p, "", 0)
		_, _ = r.Write(ctx, p, strings.NewReader("w"), WriteOptions{Parents: true})
		_, _ = r.Mkdir(ctx, p, MkdirOptions{Parents: true})
		_ = r.Rename(ctx, p, p+"x", true)
		_ = r.Remove(ctx, p, true)
		check()
		if _, err := os.Stat(filepath.Join(procPath(fd(r.dir.Fd())))); err != nil {
			t.Errorf("%q: the root itself: %v", p, err)
		}
	})
}
