package files

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWriteShifted(t *testing.T) {
	f := newFixture(t, func(l string) {
		must(t, os.WriteFile(l+"/old", []byte("old"), 0o640))
		must(t, os.Chown(l+"/old", 33, 34))
		must(t, unix.Setxattr(l+"/old", "user.tag", []byte("v"), 0))
	}, Limits{})
	ctx := context.Background()

	info, err := f.Write(ctx, "/a/b/new", strings.NewReader("hello"), WriteOptions{
		Parents: true, Mode: ptr(uint32(0o4751)), UID: ptr(uint32(1000)), GID: ptr(uint32(1001)), Sync: true,
	})
	must(t, err)
	if info.UID != 1000 || info.GID != 1001 || info.Mode != 0o4751 || info.Size != 5 || info.Name != "new" {
		t.Errorf("info %+v", info)
	}
	if u, g, m := ownerOnHost(t, f.upper+"/a/b/new"); u != 1000 || g != 1001 || m != 0o4751 {
		t.Errorf("on disk: %d:%d %o", u, g, m)
	}
	if u, g, m := ownerOnHost(t, f.upper+"/a/b"); u != 1000 || g != 1001 || m != 0o755 {
		t.Errorf("parent on disk: %d:%d %o", u, g, m)
	}

	// A file of a lower layer is replaced; owner, mode and attributes stay.
	_, err = f.Write(ctx, "old", strings.NewReader("new"), WriteOptions{})
	must(t, err)
	if u, g, m := ownerOnHost(t, f.upper+"/old"); u != 33 || g != 34 || m != 0o640 {
		t.Errorf("replaced: %d:%d %o", u, g, m)
	}
	buf := make([]byte, 8)
	n, err := unix.Getxattr(f.upper+"/old", "user.tag", buf)
	must(t, err)
	if string(buf[:n]) != "v" {
		t.Errorf("attribute %q", buf[:n])
	}
	if got := get(t, f.Root, "/old"); got != "new" {
		t.Errorf("content %q", got)
	}
	if b, _ := os.ReadFile(f.lower + "/old"); string(b) != "old" {
		t.Error("the lower layer was changed")
	}
	noTemps(t, f.upper)
}

func TestWriteFollowsSymlinksInside(t *testing.T) {
	outside := t.TempDir()
	f := newFixture(t, func(l string) {
		must(t, os.Mkdir(l+"/dir", 0o755))
		must(t, os.Symlink("/dir/target", l+"/abs"))
		must(t, os.Symlink("../../../../dir/rel-target", l+"/dir/rel"))
		must(t, os.Symlink(outside+"/x", l+"/out"))
		must(t, os.Symlink(outside, l+"/outdir"))
		must(t, os.Symlink("loop2", l+"/loop1"))
		must(t, os.Symlink("loop1", l+"/loop2"))
		must(t, os.Symlink("..", l+"/dir/up"))
	}, Limits{})
	ctx := context.Background()
	write := func(path string) error {
		_, err := f.Write(ctx, path, strings.NewReader("x"), WriteOptions{})
		return err
	}
	must(t, write("/abs"))
	must(t, write("/dir/rel"))
	for _, p := range []string{"/dir/target", "/dir/rel-target"} {
		if got := get(t, f.Root, p); got != "x" {
			t.Errorf("%s: %q", p, got)
		}
	}
	wantCode(t, write("/out"), ErrNotFound)
	wantCode(t, write("/outdir/x"), ErrNotFound)
	wantCode(t, write("/loop1"), ErrSymlink)
	wantCode(t, write("/dir/up"), ErrIsDir)
	must(t, write("/../../../../escaped"))
	if got := get(t, f.Root, "/escaped"); got != "x" {
		t.Error(`".." does not stop at the root`)
	}
	if e, err := os.ReadDir(outside); err != nil || len(e) != 0 {
		t.Errorf("outside changed: %v %v", e, err)
	}
	_, err := f.Write(ctx, "/abs", strings.NewReader("x"), WriteOptions{Exclusive: true})
	wantCode(t, err, ErrExists)
}

func TestWriteErrors(t *testing.T) {
	f := newFixture(t, func(l string) {
		must(t, os.Mkdir(l+"/dir", 0o755))
		must(t, os.WriteFile(l+"/file", []byte("keep"), 0o644))
		must(t, unix.Mkfifo(l+"/fifo", 0o644))
	}, Limits{FileBytes: 100})
	ctx := context.Background()
	cut := io.MultiReader(strings.NewReader("abc"), errReader{io.ErrUnexpectedEOF})
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	for _, c := range []struct {
		name string
		ctx  context.Context
		path string
		src  io.Reader
		o    WriteOptions
		want Code
	}{
		{"empty", ctx, "", strings.NewReader(""), WriteOptions{}, ErrBadPath},
		{"nul", ctx, "a\x00b", strings.NewReader(""), WriteOptions{}, ErrBadPath},
		{"long", ctx, strings.Repeat("a/", 3000), strings.NewReader(""), WriteOptions{Parents: true}, ErrBadPath},
		{"long name", ctx, strings.Repeat("a", 256), strings.NewReader(""), WriteOptions{}, ErrBadPath},
		{"root", ctx, "/", strings.NewReader(""), WriteOptions{}, ErrIsDir},
		{"dots", ctx, "/dir/..", strings.NewReader(""), WriteOptions{}, ErrIsDir},
		{"slash", ctx, "/file/", strings.NewReader(""), WriteOptions{}, ErrIsDir},
		{"directory", ctx, "/dir", strings.NewReader(""), WriteOptions{}, ErrIsDir},
		{"no parent", ctx, "/no/file", strings.NewReader(""), WriteOptions{}, ErrNotFound},
		{"file as parent", ctx, "/file/x", strings.NewReader(""), WriteOptions{Parents: true}, ErrNotDir},
		{"fifo", ctx, "/fifo", strings.NewReader(""), WriteOptions{}, ErrNotRegular},
		{"large", ctx, "/file", strings.NewReader(strings.Repeat("x", 101)), WriteOptions{}, ErrTooLarge},
		{"larger than asked", ctx, "/file", strings.NewReader("xxx"), WriteOptions{MaxBytes: 2}, ErrTooLarge},
		{"cut", ctx, "/file", cut, WriteOptions{}, ErrSource},
		{"errno in source", ctx, "/file", errReader{unix.ENOENT}, WriteOptions{}, ErrSource},
		{"uid", ctx, "/file", strings.NewReader(""), WriteOptions{UID: ptr(uint32(IDs))}, ErrInvalid},
		{"uid wraps", ctx, "/file", strings.NewReader(""), WriteOptions{UID: ptr(^uint32(0) - testBase + 1)}, ErrInvalid},
		{"mode", ctx, "/file", strings.NewReader(""), WriteOptions{Mode: ptr(uint32(0o10000))}, ErrInvalid},
		{"cancelled", cancelled, "/file", strings.NewReader("x"), WriteOptions{}, ErrCanceled},
	} {
		t.Run(c.name, func(t *testing.T) {
			soon(t, func() {
				_, err := f.Write(c.ctx, c.path, c.src, c.o)
				if !errors.Is(err, c.want) {
					t.Errorf("got %v, want %s", err, c.want)
				}
			})
		})
	}
	if got := get(t, f.Root, "/file"); got != "keep" {
		t.Errorf("a failed write changed the file: %q", got)
	}
	noTemps(t, f.upper)
	// Exactly the limit is allowed.
	_, err := f.Write(ctx, "/file", strings.NewReader(strings.Repeat("x", 100)), WriteOptions{})
	must(t, err)

	ro := New(f.dir, Options{ReadOnly: true})
	_, err = ro.Write(ctx, "/file", strings.NewReader(""), WriteOptions{})
	wantCode(t, err, ErrReadOnly)
	wantCode(t, ro.Remove(ctx, "/file", false), ErrReadOnly)
	_, err = ro.TarIn(ctx, "/", strings.NewReader(""), TarInOptions{})
	wantCode(t, err, ErrReadOnly)
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }

// A file system without O_TMPFILE gets a temporary name, and keeps none of them.
func TestNewFileWithTemporaryName(t *testing.T) {
	r, dir := hostRoot(t, Limits{})
	for _, fails := range []bool{false, true} {
		err := r.as(0, 0, func(a *actor) error {
			p, err := r.locate("/x", true)
			must(t, err)
			defer p.close()
			n, err := a.newFile(p.dir)
			must(t, err)
			defer n.discard()
			must(t, unix.Linkat(int(n.fd()), "", int(p.dir), ".cairn-temp", unix.AT_EMPTY_PATH))
			n.temp = ".cairn-temp"
			if fails {
				return unix.EIO
			}
			return n.install(p, false)
		})
		if (err != nil) != fails {
			t.Fatal(err)
		}
	}
	noTemps(t, dir)
	if _, err := os.Stat(dir + "/x"); err != nil {
		t.Error(err)
	}
}

func TestWriteKeepsHoles(t *testing.T) {
	f := newFixture(t, nil, Limits{})
	want := make([]byte, 8<<20)
	want[5<<20] = 1
	info, err := f.Write(context.Background(), "sparse", bytes.NewReader(want), WriteOptions{})
	must(t, err)
	if info.Size != 8<<20 || info.Blocks > 1<<20 {
		t.Errorf("size %d, allocated %d", info.Size, info.Blocks)
	}
	if got := get(t, f.Root, "sparse"); got != string(want) {
		t.Error("content differs")
	}
}

func TestMkdir(t *testing.T) {
	f := newFixture(t, func(l string) {
		must(t, os.Symlink("nowhere", l+"/dangling"))
		must(t, os.WriteFile(l+"/file", nil, 0o644))
	}, Limits{})
	ctx := context.Background()
	info, err := f.Mkdir(ctx, "/x/y/z/", MkdirOptions{Parents: true, Mode: ptr(uint32(0o2770)), UID: ptr(uint32(7)), GID: ptr(uint32(8))})
	must(t, err)
	if info.Type != TypeDir || info.Mode != 0o2770 || info.UID != 7 || info.GID != 8 {
		t.Errorf("%+v", info)
	}
	if u, g, m := ownerOnHost(t, f.upper+"/x/y"); u != 7 || g != 8 || m != 0o755 {
		t.Errorf("parent %d:%d %o", u, g, m)
	}
	_, err = f.Mkdir(ctx, "/x/y", MkdirOptions{Parents: true})
	must(t, err)
	_, err = f.Mkdir(ctx, "/x/y", MkdirOptions{})
	wantCode(t, err, ErrExists)
	_, err = f.Mkdir(ctx, "/q/y", MkdirOptions{})
	wantCode(t, err, ErrNotFound)
	_, err = f.Mkdir(ctx, "/file/y", MkdirOptions{Parents: true})
	wantCode(t, err, ErrNotDir)
	_, err = f.Mkdir(ctx, "/file", MkdirOptions{Parents: true})
	wantCode(t, err, ErrNotDir)
	_, err = f.Mkdir(ctx, "/dangling/y", MkdirOptions{Parents: true})
	wantCode(t, err, ErrNotFound)
	_, err = f.Mkdir(ctx, "/", MkdirOptions{Parents: true})
	must(t, err)
}

func TestRemove(t *testing.T) {
	outside := t.TempDir()
	must(t, os.WriteFile(outside+"/keep", nil, 0o644))
	f := newFixture(t, func(l string) {
		must(t, os.MkdirAll(l+"/tree/a/b", 0o755))
		for i := range 2500 {
			must(t, os.WriteFile(filepath.Join(l, "tree/a", "f"+string(rune('a'+i%26))+strings.Repeat("x", i/26)), nil, 0o644))
		}
		must(t, os.Symlink(outside, l+"/tree/a/out"))
		must(t, unix.Mkfifo(l+"/tree/fifo", 0o644))
		must(t, os.Symlink("/tree", l+"/link"))
		must(t, os.Mkdir(l+"/full", 0o755))
		must(t, os.WriteFile(l+"/full/x", nil, 0o644))
	}, Limits{Depth: 8})
	ctx := context.Background()
	f.put(t, "/tree/a/upper", "x")
	for _, p := range []string{"/", "//", ".", "..", "/tree/..", "/tree/."} {
		wantCode(t, f.Remove(ctx, p, true), ErrBadPath)
	}
	wantCode(t, f.Remove(ctx, "/full", false), ErrNotEmpty)
	wantCode(t, f.Remove(ctx, "/none", false), ErrNotFound)
	must(t, f.Remove(ctx, "/link/", true)) // the link, not the tree
	if _, err := f.Stat(ctx, "/tree/a/upper", false); err != nil {
		t.Fatal(err)
	}
	must(t, f.Remove(ctx, "/tree", true))
	_, err := f.Stat(ctx, "/tree", false)
	wantCode(t, err, ErrNotFound)
	if _, err := os.Stat(outside + "/keep"); err != nil {
		t.Error(err)
	}
	_, err = f.Mkdir(ctx, "/deep"+strings.Repeat("/d", 20), MkdirOptions{Parents: true})
	must(t, err)
	wantCode(t, f.Remove(ctx, "/deep", true), ErrTooLarge)
}

func TestRenameAndSetAttr(t *testing.T) {
	f := newFixture(t, func(l string) {
		must(t, os.Mkdir(l+"/lowdir", 0o755))
		must(t, os.WriteFile(l+"/low", []byte("low"), 0o644))
		must(t, os.Symlink("/low", l+"/link"))
	}, Limits{})
	ctx := context.Background()
	f.put(t, "/b", "b")
	wantCode(t, f.Rename(ctx, "/low", "/b", false), ErrExists)
	must(t, f.Rename(ctx, "/low", "/b", true))
	if got := get(t, f.Root, "/b"); got != "low" {
		t.Errorf("%q", got)
	}
	wantCode(t, f.Rename(ctx, "/lowdir", "/other", false), ErrUnsupported)
	wantCode(t, f.Rename(ctx, "/low", "/other", false), ErrNotFound)
	must(t, f.Rename(ctx, "/b", "/low", false))

	info, err := f.SetAttr(ctx, "/link", true, Attr{Mode: ptr(uint32(0o6711)), UID: ptr(uint32(5)), GID: ptr(uint32(6))})
	must(t, err)
	if info.Mode != 0o6711 || info.UID != 5 || info.GID != 6 || info.Type != TypeFile {
		t.Errorf("%+v", info)
	}
	info, err = f.SetAttr(ctx, "/link", false, Attr{UID: ptr(uint32(9))})
	must(t, err)
	if info.Type != TypeSymlink || info.UID != 9 {
		t.Errorf("%+v", info)
	}
	_, err = f.SetAttr(ctx, "/link", false, Attr{Mode: ptr(uint32(0o777))})
	wantCode(t, err, ErrSymlink)
	_, err = f.SetAttr(ctx, "/low", false, Attr{UID: ptr(uint32(IDs))})
	wantCode(t, err, ErrInvalid)
}
