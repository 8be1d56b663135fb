package files

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestUnifiedDiff(t *testing.T) {
	got, binary := UnifiedDiff("a/x", "b/x", []byte("1\n2\n3\n4\n5\n6\n"), []byte("1\n2\n3\nfour\n5\n6"), 1)
	want := "--- a/x\n+++ b/x\n@@ -3,4 +3,4 @@\n 3\n-4\n+four\n 5\n-6\n+6\n\\ No newline at end of file\n"
	if got != want || binary {
		t.Errorf("%q, want %q", got, want)
	}
	if got, _ := UnifiedDiff("a", "b", []byte("x"), []byte("x"), 3); got != "" {
		t.Errorf("%q", got)
	}
	if got, binary := UnifiedDiff("a", "b", []byte("x\x00"), []byte("x"), 3); !binary || got != "Binary files a and b differ\n" {
		t.Errorf("%q %v", got, binary)
	}
	if got, _ := UnifiedDiff("a\n+++ fake", "b", []byte("x\n"), []byte("y\n"), 3); !strings.HasPrefix(got, "--- \"a\\n+++ fake\"\n+++ b\n") {
		t.Errorf("%q", got)
	}
	if got, _ := UnifiedDiff("a", "b", make9MiB('x'), make9MiB('y'), 3); !strings.Contains(got, "too large") {
		t.Errorf("%d bytes", len(got))
	}
}

func make9MiB(b byte) []byte { return bytes.Repeat([]byte{b}, 9<<20) }

// The worst that fits: nothing in common, or everything moved.
func TestUnifiedDiffIsBounded(t *testing.T) {
	var a, b, c strings.Builder
	for i := range diffLines/2 - 1 {
		fmt.Fprintf(&a, "a%d\n", i)
		fmt.Fprintf(&b, "b%d\n", i)
		fmt.Fprintf(&c, "a%d\n", (i*7919)%(diffLines/2))
	}
	for _, other := range []string{b.String(), c.String()} {
		start := time.Now()
		UnifiedDiff("a", "b", []byte(a.String()), []byte(other), 3)
		if d := time.Since(start); d > 30*time.Second {
			t.Errorf("took %v", d)
		}
	}
}

// patch makes the second text out of the first and the diff.
func TestUnifiedDiffApplies(t *testing.T) {
	dir := t.TempDir()
	if _, err := exec.LookPath("patch"); err != nil {
		t.Fatal(err)
	}
	lines := rapid.SliceOfN(rapid.SampledFrom([]string{"a\n", "b\n", "c\n", "\n", "-\n", "d\r\n"}), 1, 40)
	rapid.Check(t, func(rt *rapid.T) {
		a := strings.Join(lines.Draw(rt, "a"), "")
		b := strings.Join(lines.Draw(rt, "b"), "") + rapid.SampledFrom([]string{"", "no newline"}).Draw(rt, "end")
		d, _ := UnifiedDiff("f", "f", []byte(a), []byte(b), 3)
		if d == "" {
			if a != b {
				rt.Fatal("no diff of different texts")
			}
			return
		}
		file := filepath.Join(dir, "f")
		must(t, os.WriteFile(file, []byte(a), 0o600))
		cmd := exec.Command("patch", "--binary", "-s", file)
		cmd.Stdin = strings.NewReader(d)
		if msg, err := cmd.CombinedOutput(); err != nil {
			rt.Fatalf("patch: %v %s\n%s", err, msg, d)
		}
		got, err := os.ReadFile(file)
		must(t, err)
		if string(got) != b {
			rt.Fatalf("patched %q, want %q\n%s", got, b, d)
		}
	})
}
