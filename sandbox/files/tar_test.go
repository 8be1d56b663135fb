package files

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

type entry struct {
	name    string
	kind    byte
	link    string
	content string
	mode    int64
	uid     int
	mtime   time.Time
	pax     map[string]string
}

func tarOf(t testing.TB, entries ...entry) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{
			Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: e.mode, Uid: e.uid, Gid: e.uid,
			Size: int64(len(e.content)), ModTime: e.mtime, PAXRecords: e.pax, Format: tar.FormatPAX,
		}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			h = &tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: e.pax, Name: e.name}
		}
		must(t, w.WriteHeader(h))
		_, err := w.Write([]byte(e.content))
		must(t, err)
	}
	must(t, w.Close())
	return &b
}

func TestTarInShifted(t *testing.T) {
	f := newFixture(t, func(l string) {
		must(t, os.MkdirAll(l+"/t/was/a/dir", 0o700))
		must(t, os.WriteFile(l+"/t/replaced", []byte("old"), 0o644))
		must(t, os.Symlink("/victim", l+"/t/link"))
		must(t, os.WriteFile(l+"/victim", []byte("safe"), 0o644))
		must(t, unix.Chmod(l+"/t", 0o1777))
	}, Limits{})
	old := time.Unix(1_000_000_000, 5000).UTC()
	stats, err := f.TarIn(context.Background(), "/t", tarOf(t,
		entry{name: "global", kind: tar.TypeXGlobalHeader, pax: map[string]string{"comment": "x"}},
		entry{name: "./", kind: tar.TypeDir, mode: 0o700},
		entry{name: "./was/", kind: tar.TypeDir, mode: 0o2750, uid: 12, mtime: old},
		entry{name: "was/file", content: "hello", mode: 0o4755, uid: 1000, mtime: old, pax: map[string]string{
			"SCHILY.xattr.user.k": "v\x00w", "SCHILY.xattr.security.capability": "\x01",
		}},
		entry{name: "replaced", content: "new", uid: 65535},
		entry{name: "link", content: "file now"},
		entry{name: "sym", kind: tar.TypeSymlink, link: "../../../etc/passwd", uid: 5, mtime: old},
		entry{name: "hard", kind: tar.TypeLink, link: "./was/file"},
		entry{name: "hard", kind: tar.TypeLink, link: "was/file"}, // again: rename of one inode onto itself
		entry{name: "fifo", kind: tar.TypeFifo, mode: 0o600, uid: 6},
		entry{name: "no/entry/for/dir", content: "x"},
	), TarInOptions{})
	must(t, err)
	if stats.Entries != 11 || stats.Bytes != 17 || stats.Skipped != 1 {
		t.Errorf("%+v", stats)
	}
	for path, want := range map[string][3]uint32{
		"t":           {0, 0, 0o1777}, // was there: left alone
		"t/was":       {12, 12, 0o2750},
		"t/was/file":  {1000, 1000, 0o4755},
		"t/replaced":  {65535, 65535, 0o644},
		"t/sym":       {5, 5, 0o777},
		"t/fifo":      {6, 6, 0o600},
		"t/no/entry":  {0, 0, 0o755},
		"t/hard":      {1000, 1000, 0o4755},
		"t/link":      {0, 0, 0o644},
		"t/was/a/dir": {0, 0, 0o700},
	} {
		host := filepath.Join(f.upper, path)
		if _, err := os.Lstat(host); errors.Is(err, os.ErrNotExist) {
			host = filepath.Join(f.lower, path)
		}
		if u, g, m := ownerOnHost(t, host); [3]uint32{u, g, m} != want {
			t.Errorf("%s: %d:%d %o, want %d:%d %o", path, u, g, m, want[0], want[1], want[2])
		}
	}
	if got := get(t, f.Root, "/victim"); got != "safe" {
		t.Error("a symlink was followed")
	}
	for _, p := range []string{"/t/was", "/t/was/file", "/t/sym"} {
		if i, err := f.Stat(context.Background(), p, false); err != nil || !i.ModTime.Equal(old) {
			t.Errorf("%s: time %v %v", p, i.ModTime, err)
		}
	}
	buf := make([]byte, 9)
	n, err := unix.Getxattr(f.upper+"/t/was/file", "user.k", buf)
	if err != nil || string(buf[:n]) != "v\x00w" {
		t.Errorf("attribute %q %v", buf[:n], err)
	}
	noTemps(t, f.upper)
}

func TestTarInRefuses(t *testing.T) {
	outside := t.TempDir()
	must(t, os.WriteFile(outside+"/secret", []byte("secret"), 0o600))
	good := entry{name: "good", content: "x"}
	endless := &paxBomb{}
	for _, c := range []struct {
		name    string
		src     io.Reader
		want    Code
		at      string
		entries int
	}{
		{"dotdot", tarOf(t, good, entry{name: "../x"}), ErrBadArchive, "../x", 1},
		{"dotdot inside", tarOf(t, good, entry{name: "a/../../x"}), ErrBadArchive, "a/../../x", 1},
		{"absolute", tarOf(t, good, entry{name: "/etc/x"}), ErrBadArchive, "/etc/x", 1},
		{"hard link absolute", tarOf(t, good, entry{name: "h", kind: tar.TypeLink, link: outside + "/secret"}), ErrBadArchive, "h", 1},
		{"hard link dotdot", tarOf(t, good, entry{name: "h", kind: tar.TypeLink, link: "../secret"}), ErrBadArchive, "h", 1},
		{"hard link missing", tarOf(t, good, entry{name: "h", kind: tar.TypeLink, link: "nope"}), ErrNotFound, "h", 1},
		{"hard link to dir", tarOf(t, good, entry{name: "h", kind: tar.TypeLink, link: "olddir"}), ErrBadArchive, "h", 1},
		{"hard link through symlink", tarOf(t, entry{name: "s", kind: tar.TypeSymlink, link: outside}, entry{name: "h", kind: tar.TypeLink, link: "s/secret"}), ErrSymlink, "h", 1},
		{"hard link to symlink", tarOf(t, entry{name: "s", kind: tar.TypeSymlink, link: outside + "/secret"}, entry{name: "h", kind: tar.TypeLink, link: "s"}), ErrBadArchive, "h", 1},
		{"device", tarOf(t, good, entry{name: "d", kind: tar.TypeChar}), ErrBadArchive, "d", 1},
		{"block device", tarOf(t, good, entry{name: "d", kind: tar.TypeBlock}), ErrBadArchive, "d", 1},
		{"symlinked parent", tarOf(t, entry{name: "s", kind: tar.TypeSymlink, link: outside}, entry{name: "s/x", content: "x"}), ErrSymlink, "s/x", 1},
		{"symlinked parent inside", tarOf(t, entry{name: "s", kind: tar.TypeSymlink, link: "olddir"}, entry{name: "s/x", content: "x"}), ErrSymlink, "s/x", 1},
		{"old symlinked parent", tarOf(t, entry{name: "oldlink/x", content: "x"}), ErrSymlink, "oldlink/x", 0},
		{"old symlinked grandparent", tarOf(t, entry{name: "oldlink/a/b/x", content: "x"}), ErrSymlink, "oldlink/a/b/x", 0},
		{"dir over symlink", tarOf(t, entry{name: "oldlink", kind: tar.TypeDir, mode: 0o755}), ErrNotDir, "oldlink", 0},
		{"file as parent", tarOf(t, good, entry{name: "good/x"}), ErrSymlink, "good/x", 1},
		{"file over dir", tarOf(t, entry{name: "olddir", content: "x"}), ErrIsDir, "olddir", 0},
		{"long component", tarOf(t, entry{name: strings.Repeat("x", 256)}), ErrBadArchive, strings.Repeat("x", 256), 0},
		{"long name", tarOf(t, entry{name: strings.Repeat("x/", 2100), kind: tar.TypeDir}), ErrBadArchive, strings.Repeat("x/", 2100), 0},
		{"deep", tarOf(t, entry{name: strings.Repeat("x/", 33) + "y"}), ErrTooLarge, strings.Repeat("x/", 33) + "y", 0},
		{"owner", tarOf(t, good, entry{name: "o", uid: IDs}), ErrInvalid, "o", 1},
		{"file too large", tarOf(t, good, entry{name: "big", content: strings.Repeat("x", 1000)}), ErrTooLarge, "big", 1},
		{"sum too large", tarOf(t, entry{name: "a", content: strings.Repeat("x", 600)}, entry{name: "b", content: strings.Repeat("x", 600)}), ErrTooLarge, "b", 1},
		{"too many", tarOf(t, good, good, good, good, good, good), ErrTooLarge, "good", 5},
		{"empty target", tarOf(t, entry{name: "s", kind: tar.TypeSymlink, link: strings.Repeat("x", 5000)}), ErrBadArchive, "s", 0},
		{"top is no dir", tarOf(t, entry{name: "./.", kind: tar.TypeSymlink, link: "x"}), ErrBadArchive, "./.", 0},
		{"cut", cutOff(t, tarOf(t, good, entry{name: "cut", content: strings.Repeat("x", 900)}), 2200), ErrBadArchive, "", 1},
		{"garbage", strings.NewReader(strings.Repeat("garbage ", 1000)), ErrBadArchive, "", 0},
		{"reader fails", io.MultiReader(cutOff(t, tarOf(t, good), 600), errReader{unix.EDQUOT}), ErrSource, "", 1},
		{"endless headers", endless, ErrTooLarge, "", 0},
		{"sparse bomb", sparseBomb(), ErrTooLarge, "bomb", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, func(l string) {
				must(t, os.MkdirAll(l+"/t/olddir/a/b", 0o755))
				must(t, os.Symlink("olddir", l+"/t/oldlink"))
			}, Limits{TarBytes: 999, TarEntries: 5, Depth: 32})
			soon(t, func() {
				stats, err := f.TarIn(context.Background(), "/t", c.src, TarInOptions{})
				var e *Error
				if !errors.As(err, &e) || e.Code != c.want || c.at != "" && e.Path != c.at || stats.Entries != c.entries {
					t.Errorf("after %d entries: %v; want %s at %q after %d", stats.Entries, err, c.want, c.at, c.entries)
				}
			})
			noTemps(t, f.upper)
		})
	}
	if e, err := os.ReadDir(outside); err != nil || len(e) != 1 {
		t.Errorf("outside changed: %v %v", e, err)
	}
	if endless.read > 10<<20 {
		t.Errorf("read %d bytes of headers", endless.read)
	}
}

func cutOff(t *testing.T, r io.Reader, n int64) io.Reader {
	t.Helper()
	b, err := io.ReadAll(io.LimitReader(r, n))
	must(t, err)
	return bytes.NewReader(b)
}

// paxBomb is an archive of extended headers that never come to an entry.
type paxBomb struct {
	one  []byte
	read int
}

func (b *paxBomb) Read(p []byte) (int, error) {
	if b.one == nil {
		r := paxRecord("comment", strings.Repeat("x", 400))
		b.one = append(ustar("x", tar.TypeXHeader, 0, int64(len(r))), r...)
		b.one = append(b.one, make([]byte, padding(int64(len(b.one))))...)
	}
	n := copy(p, b.one[b.read%len(b.one):])
	b.read += n
	return n, nil
}

// sparseBomb is a small archive of one file of 8 EiB.
func sparseBomb() io.Reader {
	var pax, b bytes.Buffer
	for _, kv := range [][2]string{
		{"GNU.sparse.major", "1"},
		{"GNU.sparse.minor", "0"},
		{"GNU.sparse.name", "bomb"},
		{"GNU.sparse.realsize", "9223372036854775807"},
	} {
		pax.WriteString(paxRecord(kv[0], kv[1]))
	}
	b.Write(ustar("x", tar.TypeXHeader, 0, int64(pax.Len())))
	b.Write(pax.Bytes())
	b.Write(make([]byte, padding(int64(pax.Len()))))
	b.Write(ustar("bomb", tar.TypeReg, 0o644, 512))
	table := []byte("1\n9223372036854775807\n0\n")
	b.Write(table)
	b.Write(make([]byte, padding(int64(len(table)))+1024))
	return &b
}

// What TarOut writes, TarIn, GNU tar and archive/tar read.
func TestTarRoundTrip(t *testing.T) {
	long := strings.Repeat("long", 60)
	src := newFixture(t, func(l string) {
		d := l + "/src/dir/" + long
		must(t, os.MkdirAll(d, 0o750))
		must(t, os.WriteFile(d+"/file", []byte("content"), 0o4711))
		must(t, os.Chown(d+"/file", 1000, 1001))
		must(t, unix.Chmod(d+"/file", 0o4711))
		must(t, unix.Setxattr(d+"/file", "user.k", []byte("\x00v"), 0))
		must(t, unix.Setxattr(d+"/file", "user.a=b", []byte("x"), 0))
		must(t, os.Link(d+"/file", l+"/src/hard"))
		must(t, os.Symlink("/nowhere\xff", l+"/src/sym"))
		must(t, unix.Mkfifo(l+"/src/fifo", 0o620))
		must(t, unix.Mknod(l+"/src/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		must(t, os.WriteFile(l+"/src/odd \n\xfe name", []byte("odd"), 0o644))
		must(t, os.WriteFile(l+"/src/empty", nil, 0o644))
		must(t, os.Chtimes(d, time.Time{}, time.Unix(12345, 678000000)))
		f, err := os.Create(l + "/src/sparse")
		must(t, err)
		_, err = f.WriteAt([]byte("middle"), 5<<30)
		must(t, err)
		must(t, f.Truncate(20<<30))
		must(t, f.Close())
		must(t, os.Truncate(l+"/src/empty", 10<<30)) // only a hole
	}, Limits{TarBytes: 64 << 30})
	ctx := context.Background()
	src.put(t, "/src/upper", "upper")
	var b bytes.Buffer
	stats, err := src.TarOut(ctx, "/src", &b)
	must(t, err)
	// null, and the attribute with "=" under both of its names
	if stats.Skipped < 2 || b.Len() > 1<<20 {
		t.Errorf("%+v in %d bytes", stats, b.Len())
	}

	dst := newFixture(t, nil, Limits{TarBytes: 64 << 30})
	inStats, err := dst.TarIn(ctx, "/copy", bytes.NewReader(dropHoles(t, b.Bytes())), TarInOptions{Parents: true})
	must(t, err)
	if inStats.Entries == 0 {
		t.Error("nothing unpacked")
	}

	// GNU tar agrees, holes included.
	out := t.TempDir()
	cmd := exec.Command("tar", "-x", "-p", "--numeric-owner", "--xattrs", "-C", out)
	cmd.Stdin = bytes.NewReader(b.Bytes())
	if msg, err := cmd.CombinedOutput(); err != nil || len(msg) > 0 {
		t.Fatalf("tar: %v %s", err, msg)
	}
	compare := func(rel string) {
		t.Helper()
		want, err := src.Stat(ctx, "/src/"+rel, false)
		must(t, err)
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(out, rel), &st))
		if st.Uid != want.UID || st.Gid != want.GID || st.Mode&0o7777 != want.Mode || want.Type != TypeDir && st.Size != want.Size ||
			st.Mtim.Sec != want.ModTime.Unix() || st.Mtim.Nsec != int64(want.ModTime.Nanosecond()) {
			t.Errorf("%q by tar: %+v, want %+v", rel, st, want)
		}
		got, err := dst.Stat(ctx, "/copy/"+rel, false)
		if rel == "sparse" || rel == "empty" {
			return // left out of the second archive
		}
		must(t, err)
		if got.UID != want.UID || got.GID != want.GID || got.Mode != want.Mode || got.Target != want.Target ||
			got.Links != want.Links || !got.ModTime.Equal(want.ModTime) || got.Type != want.Type {
			t.Errorf("%q: %+v, want %+v", rel, got, want)
		}
	}
	for _, rel := range []string{
		"dir", "dir/" + long, "dir/" + long + "/file", "hard", "sym", "fifo",
		"odd \n\xfe name", "upper", "sparse", "empty",
	} {
		compare(rel)
	}
	f, err := os.Open(out + "/sparse")
	must(t, err)
	defer func() { _ = f.Close() }()
	buf := make([]byte, 8)
	if _, err := f.ReadAt(buf, 5<<30-1); err != nil || string(buf) != "\x00middle\x00" {
		t.Errorf("sparse content %q %v", buf, err)
	}
	var x, y unix.Stat_t
	must(t, unix.Lstat(out+"/hard", &x))
	must(t, unix.Lstat(filepath.Join(out, "dir", long, "file"), &y))
	if x.Ino != y.Ino {
		t.Error("the hard link became a copy")
	}
	n, err := unix.Getxattr(out+"/hard", "user.k", buf)
	if err != nil || string(buf[:n]) != "\x00v" {
		t.Errorf("attribute %q %v", buf[:n], err)
	}
}

// dropHoles leaves out the entries that take gigabytes when read in full.
func dropHoles(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	r, w := tar.NewReader(bytes.NewReader(b)), tar.NewWriter(&out)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		if h.Size > 1<<30 {
			continue
		}
		must(t, w.WriteHeader(h))
		_, err = io.Copy(w, r)
		must(t, err)
	}
	must(t, w.Close())
	return out.Bytes()
}

func TestTarOutLimits(t *testing.T) {
	fill := func(l string) {
		must(t, os.MkdirAll(l+"/a/b/c", 0o755))
		must(t, os.WriteFile(l+"/a/file", make([]byte, 1000), 0o644))
		must(t, unix.Mkfifo(l+"/fifo", 0o644))
	}
	ctx := context.Background()
	for _, c := range []struct {
		limits Limits
		at     string
	}{{Limits{TarBytes: 999}, "a/file"}, {Limits{TarEntries: 3}, ""}, {Limits{Depth: 2}, "a/b"}} {
		f := newFixture(t, fill, c.limits)
		_, err := f.TarOut(ctx, "/", discard{})
		wantCode(t, err, ErrTooLarge)
		var e *Error
		if errors.As(err, &e); c.at != "" && e.Path != c.at {
			t.Errorf("at %q, want %q", e.Path, c.at)
		}
	}
	f := newFixture(t, fill, Limits{})
	_, err := f.TarOut(ctx, "/", failingWriter{})
	wantCode(t, err, ErrSource)
	_, err = f.TarOut(ctx, "/fifo", discard{})
	wantCode(t, err, ErrNotRegular)
	var b bytes.Buffer
	_, err = f.TarOut(ctx, "/a/file", &b)
	must(t, err)
	if h, err := tar.NewReader(&b).Next(); err != nil || h.Name != "file" || h.Size != 1000 {
		t.Errorf("%+v %v", h, err)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = f.TarOut(cancelled, "/", discard{})
	wantCode(t, err, ErrCanceled)
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, unix.EPIPE }
