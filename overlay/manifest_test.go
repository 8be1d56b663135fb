package overlay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestEscapeRoundTrip(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		want := string(rapid.SliceOf(rapid.Byte()).Draw(r, "name"))
		e := escape(want)
		if strings.ContainsAny(e, " \n\t=") {
			r.Fatalf("%q has a separator", e)
		}
		got, err := unescape(e)
		if err != nil || got != want {
			r.Fatalf("%q: %q, %v", e, got, err)
		}
	})
}

// What is read is what would be written: no two texts mean the same.
func FuzzReadManifest(f *testing.F) {
	f.Add([]byte(manifestHeader + "\nd 0755 0 0 1.000000002 .\n"))
	f.Add([]byte(manifestHeader + "\nd 0755 0 0 1.000000002 . x:user.k=\\x00\n" +
		"f 4755 1 2 -3.000000004 a\\x20b size=1 sha256=" + strings.Repeat("ab", 32) + "\n" +
		"c 0000 0 0 0.000000000 gone device=0:0\nl 0777 0 0 0.000000000 l target=\\e same=a\\x20b\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		out := []byte(manifestHeader + "\n")
		err := readManifest(bytes.NewReader(b), func(r *record) error {
			out = r.append(out)
			return nil
		})
		if err == nil && !bytes.Equal(out, b) {
			t.Fatalf("read %q, would write %q", b, out)
		}
	})
}

func FuzzReadIndex(f *testing.F) {
	f.Add([]byte(indexHeader + "u\n1 2 3 4 100644 1 a\\x20b\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "index")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		i, err := readIndex(path)
		if err != nil {
			return
		}
		again := path + "2"
		if err := writeIndex(again, i); err != nil {
			t.Fatal(err)
		}
		if _, err := readIndex(again); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzParseProc(f *testing.F) {
	f.Add([]byte("36 35 98:0 /m1 /m\\0402 rw,noatime master:1 - ext3 /dev/root rw\n"))
	f.Add([]byte("flags:\t0100000\nmnt_id:\t7\nlock:\t1: FLOCK\ninotify wd:1 ino:2 sdev:3\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if all, err := parseMountTable(b); err == nil {
			_, _ = rootMount(all)
		}
		_, _ = parseFDInfo(b)
		_ = parseSocketPaths(b)
	})
}

// The digest is what sha256sum says of the manifest, and a file's is what it
// says of the file.
func TestManifestIsVerifiableByHand(t *testing.T) {
	p := newPool(t)
	write(t, p, "l", create("f", "hello\n"), op{Kind: "link", Path: []byte("f"), To: []byte("g")},
		op{Kind: "mkfifo", Path: []byte("p")}, op{Kind: "mksock", Path: []byte("s")})
	if err := unix.Mknod(filepath.Join(p.LayerPath("l"), "gone"), unix.S_IFCHR, 0); err != nil {
		t.Fatal(err)
	}
	s, err := p.Seal(context.Background(), "l")
	if err != nil {
		t.Fatal(err)
	}
	path := p.layer("l", manifest)
	out, err := exec.Command("sha256sum", path).Output()
	if err != nil || !strings.HasPrefix(string(out), s.Digest+" ") {
		t.Errorf("sha256sum: %s, %v; digest %s", out, err, s.Digest)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("hello\n"))
	for _, want := range []string{
		" f size=6 sha256=" + hex.EncodeToString(sum[:]) + "\n", " same=f\n", "\nc 0000 0 0 0.000000000 gone device=0:0\n", "\ns 0600 ",
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%q is not in\n%s", want, b)
		}
	}
	if s.Files != 6 || s.Bytes != 6 {
		t.Errorf("%+v", s)
	}
	again, err := p.Seal(context.Background(), "l")
	if err != nil || again != s {
		t.Errorf("sealed again: %+v, %v", again, err)
	}
}

// The example in FORMAT.md is a manifest with the digest that is given.
func TestFormatExample(t *testing.T) {
	b, err := os.ReadFile("FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, ok := strings.Cut(string(b), "```\n"+manifestHeader+"\n")
	example, rest, ok2 := strings.Cut(example, "```\n")
	if !ok || !ok2 {
		t.Fatal("no example")
	}
	example = manifestHeader + "\n" + example
	if err := readManifest(strings.NewReader(example), func(*record) error { return nil }); err != nil {
		t.Error(err)
	}
	sum := sha256.Sum256([]byte(example))
	if !strings.Contains(rest, "`"+hex.EncodeToString(sum[:])+"`") {
		t.Errorf("the digest is %x", sum)
	}
}
