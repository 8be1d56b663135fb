package runtime

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// deepen makes directories, each inside the one before.
func deepen(t *testing.T, dir string, depth int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { unix.Close(fd) }()
	for range depth {
		if err := unix.Mkdirat(fd, "d", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, "d", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		fd = next
	}
	if err := unix.Symlinkat("/etc", fd, "out"); err != nil {
		t.Fatal(err)
	}
}

func TestRemoveTree(t *testing.T) {
	top := t.TempDir()
	io := filepath.Join(top, "io")
	if err := os.MkdirAll(filepath.Join(io, "a/b/c"), 0o700); err != nil {
		t.Fatal(err)
	}
	// Deeper than descriptors last.
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	deepen(t, io, int(r.Cur)+1000)
	t.Logf("made in %v", time.Since(start))
	for _, name := range []string{"f", "a/f", "a/b/f"} {
		if err := os.WriteFile(filepath.Join(io, name), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(top, filepath.Join(io, "up")); err != nil {
		t.Fatal(err)
	}
	start = time.Now()
	for range 2 {
		if err := removeTree(top, "io"); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("removed in %v", time.Since(start))
	left, err := os.ReadDir(top)
	if err != nil || len(left) != 0 {
		t.Fatalf("left: %v, %v", left, err)
	}
	// A link in its place is removed, not followed.
	victim := t.TempDir()
	if err := os.WriteFile(filepath.Join(victim, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, io); err != nil {
		t.Fatal(err)
	}
	if err := removeTree(top, "io"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(victim, "f")); err != nil {
		t.Fatal(err)
	}
}
