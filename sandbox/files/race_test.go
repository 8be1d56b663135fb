package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A directory is swapped for a symlink to the outside, and a file for a FIFO,
// while every operation runs on it. Nothing outside may be read or changed.
func TestSwappedUnderneath(t *testing.T) {
	outside := t.TempDir()
	must(t, os.MkdirAll(outside+"/sub", 0o755))
	must(t, os.WriteFile(outside+"/file", []byte("secret"), 0o600))
	must(t, os.WriteFile(outside+"/sub/file", []byte("secret"), 0o600))
	f := newFixture(t, nil, Limits{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	f.put(t, "/real/file", "inside")
	f.put(t, "/real/sub/file", "inside")
	root := int(f.dir.Fd())
	must(t, f.as(0, 0, func(*actor) error {
		return errors.Join(unix.Symlinkat(outside, root, "evil"), unix.Mknodat(root, "fifo", unix.S_IFIFO|0o666, 0))
	}))
	f.put(t, "/plain", "inside")

	var wg sync.WaitGroup
	swap := func(a, b string) {
		wg.Go(func() {
			err := f.as(0, 0, func(*actor) error {
				for ctx.Err() == nil {
					err := unix.Renameat2(root, a, root, b, unix.RENAME_EXCHANGE)
					if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ESTALE) {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Errorf("swap: %v", err)
			}
		})
	}
	swap("real", "evil")
	swap("fifo", "plain")

	read := func(path string) {
		file, err := f.Open(ctx, path)
		if err != nil {
			return
		}
		defer func() { _ = file.Close() }()
		buf := make([]byte, 16)
		n, _ := file.ReadAt(buf, 0)
		if strings.Contains(string(buf[:n]), "secret") {
			t.Errorf("read from outside through %s", path)
		}
	}
	soon(t, func() {
		for i := range 40 {
			for _, d := range []string{"/real", "/evil", "/real/../evil/sub/.."} {
				read(d + "/file")
				read("/plain")
				_, _ = f.Write(ctx, d+"/file", strings.NewReader("inside"), WriteOptions{Parents: true})
				_, _ = f.Write(ctx, fmt.Sprintf("%s/new%d", d, i), strings.NewReader("x"), WriteOptions{})
				_, _ = f.Write(ctx, "/plain", strings.NewReader("inside"), WriteOptions{})
				_, _ = f.Mkdir(ctx, d+"/made/deep", MkdirOptions{Parents: true})
				_, _ = f.SetAttr(ctx, d+"/file", true, Attr{Mode: ptr(uint32(0o666))})
				_, _ = f.TarIn(ctx, "/", tarOf(t, entry{name: strings.TrimPrefix(d[:5], "/") + "/sub/tarred", content: "x"}), TarInOptions{})
				_, _ = f.TarIn(ctx, d, tarOf(t, entry{name: "sub/tarred", content: "x"}), TarInOptions{})
				var out strings.Builder
				_, _ = f.TarOut(ctx, "/", &out)
				if strings.Contains(out.String(), "secret") {
					t.Error("archived from outside")
				}
				_ = f.Remove(ctx, d+"/sub/file", false)
				_ = f.Remove(ctx, d+"/sub", true)
				_ = f.Rename(ctx, d+"/file", d+"/other", true)
				_, _ = f.Mkdir(ctx, d+"/sub", MkdirOptions{})
			}
		}
	})
	cancel()
	wg.Wait()

	var left []string
	must(t, filepath.WalkDir(outside, func(p string, d os.DirEntry, err error) error {
		must(t, err)
		rel, _ := filepath.Rel(outside, p)
		left = append(left, rel)
		if d.Type().IsRegular() {
			b, err := os.ReadFile(p)
			must(t, err)
			if _, _, mode := ownerOnHost(t, p); string(b) != "secret" || mode != 0o600 {
				t.Errorf("%s changed: %q %o", rel, b, mode)
			}
		}
		return nil
	}))
	if got := strings.Join(left, " "); got != ". file sub sub/file" {
		t.Errorf("outside has %s", got)
	}
}
