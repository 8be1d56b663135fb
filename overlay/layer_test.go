package overlay

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// write makes an upper and files in it, as overlayfs would.
func write(t testing.TB, p *Pool, id string, ops ...op) string {
	t.Helper()
	fresh(t, p, id)
	for _, o := range ops {
		o.Path = []byte(filepath.Join(p.LayerPath(id), string(o.Path)))
		if o.Kind == "link" || o.Kind == "rename" {
			o.To = []byte(filepath.Join(p.LayerPath(id), string(o.To)))
		}
		if err := o.run(); err != nil {
			t.Fatal(err)
		}
	}
	return id
}

func xattrOp(path, name, value string) op {
	return op{Kind: "setxattr", Path: []byte(path), To: []byte(name), Data: []byte(value)}
}

func TestVerifyFindsDamage(t *testing.T) {
	ctx := context.Background()
	type damage struct {
		name string
		do   func(dir string) error
		path string
	}
	file := func(dir string) string { return filepath.Join(dir, "d", "file") }
	flip := func(path string, bit int64) error {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return err
		}
		var b [1]byte
		if _, err := f.ReadAt(b[:], bit/8%st.Size()); err != nil {
			return err
		}
		b[0] ^= 1 << (bit % 8)
		if _, err = f.WriteAt(b[:], bit/8%st.Size()); err != nil {
			return err
		}
		return os.Chtimes(path, time.Unix(5, 0), time.Unix(5, 0))
	}
	cases := []damage{
		{"bit", func(d string) error { return flip(file(d), 77777) }, "d/file"},
		{"mode", func(d string) error { return os.Chmod(file(d), 0o600) }, "d/file"},
		{"owner", func(d string) error { return os.Chown(file(d), 1, 2) }, "d/file"},
		{"time", func(d string) error { return os.Chtimes(file(d), time.Unix(6, 0), time.Unix(6, 0)) }, "d/file"},
		{"truncated", func(d string) error { return os.Truncate(file(d), 10) }, "d/file"},
		{"missing", func(d string) error { return errors.Join(os.Remove(file(d)), touch(filepath.Join(d, "d"))) }, "d/file"},
		{"last missing", func(d string) error { return errors.Join(os.Remove(filepath.Join(d, "z")), touch(d)) }, "z"},
		{"extra", func(d string) error {
			return errors.Join(os.WriteFile(filepath.Join(d, "d", "g"), nil, 0o644), touch(filepath.Join(d, "d")))
		}, "d/g"},
		{"xattr", func(d string) error { return unix.Setxattr(file(d), "user.k", []byte("w"), 0) }, "d/file"},
		{"xattr gone", func(d string) error { return unix.Removexattr(file(d), "user.k") }, "d/file"},
		{"opaque", func(d string) error { return unix.Setxattr(filepath.Join(d, "d"), opaqueXattr, []byte("y"), 0) }, "d"},
		{"target", func(d string) error {
			p := filepath.Join(d, "link")
			ts := unix.Timespec{Sec: 5}
			return errors.Join(os.Remove(p), os.Symlink("elsewhere", p), touch(d),
				unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW))
		}, "link"},
		{"type", func(d string) error {
			p := filepath.Join(d, "link")
			return errors.Join(os.Remove(p), os.WriteFile(p, nil, 0o777), touch(d))
		}, "link"},
		{"hard link", func(d string) error {
			p := filepath.Join(d, "z")
			return errors.Join(os.Remove(p), os.Link(file(d), p), touch(d))
		}, "z"},
		{"manifest bit", func(d string) error { return flip(filepath.Join(filepath.Dir(d), manifest), 1234) }, ""},
		{"manifest gone", func(d string) error { return os.Remove(filepath.Join(filepath.Dir(d), manifest)) }, ""},
		{"manifest cut", func(d string) error { return os.Truncate(filepath.Join(filepath.Dir(d), manifest), 200) }, ""},
	}
	p := newPool(t)
	content := make([]byte, 20000)
	rng := rand.NewChaCha8([32]byte{1})
	if _, err := rng.Read(content); err != nil {
		t.Fatal(err)
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			id := write(t, p, fmt.Sprintf("l%d", i), mkdir("d"), create("d/file", string(content)), create("z", "z"),
				op{Kind: "symlink", Path: []byte("link"), To: []byte("target")}, xattrOp("d/file", "user.k", "v"))
			dir := p.LayerPath(id)
			for _, path := range []string{file(dir), filepath.Join(dir, "d"), dir} {
				if err := touch(path); err != nil {
					t.Fatal(err)
				}
			}
			s, err := p.Seal(ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Verify(ctx, id, s.Digest); err != nil {
				t.Fatal(err)
			}
			if err := c.do(dir); err != nil {
				t.Fatal(err)
			}
			var ce *CorruptError
			if err := p.Verify(ctx, id, s.Digest); !errors.As(err, &ce) {
				t.Fatalf("%v", err)
			}
			if ce.Layer != id || ce.Path != c.path {
				t.Fatalf("%v, expected it of %q", ce, c.path)
			}
		})
	}
}

// touch sets a time that the tests know.
func touch(path string) error { return os.Chtimes(path, time.Unix(5, 0), time.Unix(5, 0)) }

func TestRemoveAndStaging(t *testing.T) {
	ctx := context.Background()
	dir := sharedDir(t)
	p := openPool(t, dir, Options{})
	write(t, p, "a", mkdir("x/y"), create("x/y/z", "1"))
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if err := p.Remove(gone, "a"); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if ok, err := p.Exists("a"); ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, err := Open(dir, Options{}); !errors.Is(err, ErrLocked) {
		t.Fatalf("second open: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p = openPool(t, dir, Options{})
	if es, err := os.ReadDir(filepath.Join(dir, stagingDir)); err != nil || len(es) != 0 {
		t.Fatalf("staging has %v, %v", es, err)
	}
	write(t, p, "b")
	if err := p.CreateUpper("b", Quota{}); !errors.Is(err, ErrExists) {
		t.Fatal(err)
	}
	if ids, err := p.List(); err != nil || len(ids) != 1 || ids[0] != "b" {
		t.Fatal(ids, err)
	}
	for _, id := range []string{"", "../x", "a/b", ".", strings.Repeat("a", 65)} {
		if err := p.CreateUpper(id, Quota{}); !errors.Is(err, ErrBadID) {
			t.Errorf("%q: %v", id, err)
		}
		if err := p.Remove(ctx, id); !errors.Is(err, ErrBadID) {
			t.Errorf("%q: %v", id, err)
		}
	}
	if _, err := p.View([]string{"none"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("view: %v", err)
	}
}

type tarEntry struct {
	tar.Header
	data string
}

func makeTar(t *testing.T, es ...tarEntry) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range es {
		e.Size = int64(len(e.data))
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestApplyTar(t *testing.T) {
	ctx := context.Background()
	p := newPool(t)
	one := makeTar(t,
		tarEntry{Header: tar.Header{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o711, Uid: 3}},
		tarEntry{Header: tar.Header{Name: "etc/a", Mode: 0o4755, PAXRecords: map[string]string{
			"SCHILY.xattr.user.k": "v", "SCHILY.xattr.trusted.overlay.redirect": "/x",
		}}, data: "one"},
		tarEntry{Header: tar.Header{Name: "etc/b", Typeflag: tar.TypeLink, Linkname: "etc/a"}},
		tarEntry{Header: tar.Header{Name: "dir/x"}, data: "x"},
		tarEntry{Header: tar.Header{Name: "null", Typeflag: tar.TypeChar}},
		tarEntry{Header: tar.Header{Name: "abs", Typeflag: tar.TypeSymlink, Linkname: "/etc"}},
		tarEntry{Header: tar.Header{Name: "abs/through", Mode: 0o644}, data: "through"},
	)
	sum := one.Len()
	a, err := p.ApplyTar(ctx, "one", one, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if a.Files != 7 || a.Skipped != 1 || a.Bytes != 11 || sum == 0 || !strings.HasPrefix(a.DiffID, "sha256:") {
		t.Errorf("%+v", a)
	}
	two := makeTar(t,
		tarEntry{Header: tar.Header{Name: "etc/.wh.a"}},
		tarEntry{Header: tar.Header{Name: "dir/.wh..wh..opq"}},
		tarEntry{Header: tar.Header{Name: "dir/y"}, data: "y"},
	)
	if _, err := p.ApplyTar(ctx, "two", two, Limits{Below: []string{"one"}}); err != nil {
		t.Fatal(err)
	}
	tree := viewed(t, p, []string{"two", "one"})
	for path, there := range map[string]bool{
		"./etc/a": false, "./etc/b": true, "./etc/through": true, "./dir/x": false, "./dir/y": true, "./null": false,
	} {
		if _, ok := tree[path]; ok != there {
			t.Errorf("%s: there is %v", path, ok)
		}
	}
	if !strings.HasPrefix(tree["./etc"], "40711 3:0") || !strings.Contains(tree["./etc/b"], "user.k=76") {
		t.Errorf("etc %q, etc/b %q", tree["./etc"], tree["./etc/b"])
	}
	var st [64]byte
	if _, err := unix.Lgetxattr(filepath.Join(p.LayerPath("one"), "etc/a"), "trusted.overlay.redirect", st[:]); !errors.Is(err, unix.ENODATA) {
		t.Errorf("overlayfs's own attribute came through: %v", err)
	}
}

func TestApplyTarRefuses(t *testing.T) {
	ctx := context.Background()
	p := newPool(t)
	outside := filepath.Join(p.Dir(), "outside")
	big := strings.Repeat("x", 2000)
	for name, c := range map[string]struct {
		es    []tarEntry
		limit bool
	}{
		"dotdot":      {es: []tarEntry{{Header: tar.Header{Name: "../outside"}, data: "x"}}},
		"deep dotdot": {es: []tarEntry{{Header: tar.Header{Name: "a/b/../../../outside"}, data: "x"}}},
		"link out":    {es: []tarEntry{{Header: tar.Header{Name: "a", Typeflag: tar.TypeLink, Linkname: "../../lock"}}}},
		"link to nothing": {es: []tarEntry{
			{Header: tar.Header{Name: "a", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}},
		}},
		"too long": {es: []tarEntry{{Header: tar.Header{Name: strings.Repeat("a/", 3000) + "b"}}}},
		"bytes":    {es: []tarEntry{{Header: tar.Header{Name: "a"}, data: big}}, limit: true},
		"entries": {es: []tarEntry{
			{Header: tar.Header{Name: "a"}}, {Header: tar.Header{Name: "b"}}, {Header: tar.Header{Name: "c"}}, {Header: tar.Header{Name: "d"}},
		}, limit: true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := p.ApplyTar(ctx, "bad", makeTar(t, c.es...), Limits{Bytes: 1000, Entries: 3})
			var ae *ArchiveError
			var le *LimitError
			if c.limit && !errors.As(err, &le) || !c.limit && !errors.As(err, &ae) {
				t.Fatalf("%v", err)
			}
			if ok, _ := p.Exists("bad"); ok {
				t.Error("the layer is there")
			}
			if _, err := os.Lstat(outside); err == nil {
				t.Error("written outside")
			}
		})
	}
	t.Run("symlinked parent", func(t *testing.T) {
		_, err := p.ApplyTar(ctx, "inside", makeTar(t,
			tarEntry{Header: tar.Header{Name: "out", Typeflag: tar.TypeSymlink, Linkname: p.Dir()}},
			tarEntry{Header: tar.Header{Name: "out/outside"}, data: "x"},
		), Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(outside); err == nil {
			t.Error("written outside")
		}
	})
	t.Run("cut off", func(t *testing.T) {
		b := makeTar(t, tarEntry{Header: tar.Header{Name: "a"}, data: big})
		b.Truncate(1000)
		var ae *ArchiveError
		if _, err := p.ApplyTar(ctx, "cut", b, Limits{}); !errors.As(err, &ae) {
			t.Fatal(err)
		}
	})
}

func TestWriteIdentity(t *testing.T) {
	ctx := context.Background()
	p := newPool(t)
	write(t, p, "img", mkdir("etc"), op{Kind: "chmod", Path: []byte("etc"), Mode: 0o750}, create("etc/hosts", "old"),
		create("etc/passwd", "p"), xattrOp("etc", "user.k", "v"))
	files := []File{{"etc/hostname", []byte("me\n"), 0o644}, {"etc/hosts", []byte("new"), 0o644}}
	if err := p.WriteIdentity(ctx, "id", []string{"img"}, files, []string{"/mnt/data", "etc"}); err != nil {
		t.Fatal(err)
	}
	c := startContainer(t, p, 500000)
	c.attach(p, fresh(t, p, "u"), "id", "img")
	c.do(read("/etc/hostname", "me\n"), read("/etc/hosts", "new"), read("/etc/passwd", "p"), exists("/mnt/data"))
	if got := c.snapshot()["./etc"]; !strings.HasPrefix(got, "40750 0:0") || !strings.Contains(got, "user.k=76") {
		t.Errorf("etc is %q", got)
	}
	write(t, p, "odd", op{Kind: "symlink", Path: []byte("etc"), To: []byte("elsewhere")})
	if err := p.WriteIdentity(ctx, "id2", []string{"odd"}, files, nil); err != nil {
		t.Fatal(err)
	}
	if got := viewed(t, p, []string{"id2", "odd"})["./etc"]; !strings.Contains(got, "elsewhere") {
		t.Errorf("etc is %q", got)
	}
	for path, want := range map[string]Found{
		"etc/hosts": {Layer: 0}, "etc/passwd": {Layer: 1}, "etc/none": {Layer: -1}, "etc/passwd/x": {Layer: 1, Hidden: true},
	} {
		got, err := p.Lookup([]string{"id", "img"}, path)
		if got.Mode = 0; err != nil || got != want {
			t.Errorf("%s: %+v, %v", path, got, err)
		}
	}
}
