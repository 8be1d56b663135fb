package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestStat(t *testing.T) {
	outside := t.TempDir()
	f := newFixture(t, func(l string) {
		must(t, os.WriteFile(l+"/file", []byte("12345"), 0o640))
		must(t, os.Chown(l+"/file", 1000, 65535))
		must(t, os.Chown(l, 0, 0))
		must(t, os.WriteFile(l+"/alien", nil, 0o644))
		must(t, os.Chown(l+"/alien", 70000, 70000))
		must(t, os.Symlink("file", l+"/link"))
		must(t, os.Symlink(outside, l+"/out"))
		must(t, os.Symlink("\xff/target", l+"/odd\xfe"))
		must(t, os.Link(l+"/file", l+"/hard"))
	}, Limits{})
	ctx := context.Background()
	stat := func(path string, follow bool) Info {
		t.Helper()
		i, err := f.Stat(ctx, path, follow)
		must(t, err)
		return i
	}
	if i := stat("/link", true); i.Type != TypeFile || i.UID != 1000 || i.GID != 65535 || i.Mode != 0o640 || i.Size != 5 || i.Links != 2 {
		t.Errorf("%+v", i)
	}
	if i := stat("link", false); i.Type != TypeSymlink || i.Target != "file" {
		t.Errorf("%+v", i)
	}
	if i := stat("/", false); i.Type != TypeDir || i.Name != "/" || i.UID != 0 || i.Mount {
		t.Errorf("%+v", i)
	}
	if i := stat("/alien", false); i.UID != 65534 || i.GID != 65534 {
		t.Errorf("an owner without an id inside shows as %d:%d", i.UID, i.GID)
	}
	i := stat("/odd\xfe", false)
	if i.Name != "odd\uFFFD" || string(i.NameBytes) != "odd\xfe" || i.Target != "\uFFFD/target" || string(i.TargetBytes) != "\xff/target" {
		t.Errorf("%+v", i)
	}
	_, err := f.Stat(ctx, "/out", true)
	wantCode(t, err, ErrNotFound)
	_, err = f.Stat(ctx, "/file/x", true)
	wantCode(t, err, ErrNotDir)
	_, err = f.Stat(ctx, "", true)
	wantCode(t, err, ErrBadPath)
}

func TestList(t *testing.T) {
	var want []string
	f := newFixture(t, func(l string) {
		for i := range 57 {
			name := fmt.Sprintf("n%02d", i)
			want = append(want, name)
			must(t, os.WriteFile(l+"/"+name, nil, 0o644))
		}
		must(t, os.Symlink("n00", l+"/z"))
	}, Limits{ListItems: 10})
	want = append(want, "z")
	ctx := context.Background()
	for _, limit := range []int{0, 1, 7, 10, 1000} {
		var got []string
		for cursor := ""; ; {
			p, err := f.List(ctx, "/", cursor, limit)
			must(t, err)
			if len(p.Items) > 10 || limit > 0 && len(p.Items) > limit {
				t.Fatalf("page of %d", len(p.Items))
			}
			for _, i := range p.Items {
				got = append(got, i.Name)
			}
			if cursor = p.Next; cursor == "" {
				break
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("limit %d: %v", limit, got)
		}
	}
	_, err := f.List(ctx, "/n00", "", 0)
	wantCode(t, err, ErrNotDir)
	_, err = f.List(ctx, "/z", "", 0)
	wantCode(t, err, ErrNotDir)
	_, err = f.List(ctx, "/none", "", 0)
	wantCode(t, err, ErrNotFound)
	_, err = f.List(ctx, "/", "!", 0)
	wantCode(t, err, ErrInvalid)
}

func TestOpen(t *testing.T) {
	f := newFixture(t, func(l string) {
		must(t, os.WriteFile(l+"/file", []byte("0123456789"), 0o600))
		must(t, os.Mkdir(l+"/dir", 0o755))
		must(t, unix.Mkfifo(l+"/fifo", 0o666))
		must(t, unix.Mknod(l+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		s, err := net.Listen("unix", l+"/sock")
		must(t, err)
		s.(*net.UnixListener).SetUnlinkOnClose(false)
		must(t, s.Close())
		must(t, os.Symlink("/proc/self/environ", l+"/environ"))
	}, Limits{})
	ctx := context.Background()
	file, err := f.Open(ctx, "/file")
	must(t, err)
	defer func() { _ = file.Close() }()
	buf := make([]byte, 3)
	if _, err := file.ReadAt(buf, 4); err != nil || string(buf) != "456" {
		t.Errorf("%q %v", buf, err)
	}
	if n, err := file.Seek(-2, io.SeekEnd); n != 8 || err != nil || file.Size() != 10 {
		t.Errorf("%d %v", n, err)
	}
	for path, code := range map[string]Code{
		"/fifo": ErrNotRegular, "/null": ErrNotRegular, "/sock": ErrNotRegular,
		"/dir": ErrIsDir, "/none": ErrNotFound, "/environ": ErrNotFound,
	} {
		soon(t, func() {
			if _, err := f.Open(ctx, path); !errors.Is(err, code) {
				t.Errorf("%s: %v, want %s", path, err, code)
			}
		})
	}
}

func TestReadOfShrinkingFile(t *testing.T) {
	r, dir := hostRoot(t, Limits{})
	must(t, os.WriteFile(dir+"/x", []byte("0123456789"), 0o644))
	f, err := r.Open(context.Background(), "x")
	must(t, err)
	defer func() { _ = f.Close() }()
	must(t, os.Truncate(dir+"/x", 4))
	b, err := io.ReadAll(f)
	if string(b) != "0123" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%q %v", b, err)
	}
}

func TestErrorText(t *testing.T) {
	r, _ := hostRoot(t, Limits{})
	_, err := r.Stat(context.Background(), "/none", true)
	if got := err.Error(); !strings.Contains(got, `stat "/none"`) || !errors.Is(err, unix.ENOENT) {
		t.Error(got)
	}
}

func TestSpool(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	f, err := Spool(ctx, dir, strings.NewReader("hello"), 5)
	must(t, err)
	defer func() { _ = f.Close() }()
	if b, err := io.ReadAll(f); string(b) != "hello" || err != nil {
		t.Errorf("%q %v", b, err)
	}
	_, err = Spool(ctx, dir, strings.NewReader("hello"), 4)
	wantCode(t, err, ErrTooLarge)
	if e, _ := os.ReadDir(dir); len(e) != 0 {
		t.Errorf("left behind: %v", e)
	}
}
