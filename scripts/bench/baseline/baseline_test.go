package baseline_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cairn/scripts/bench/baseline"
)

const repository = "../../.."

// TestLife takes a container through everything that is timed, and looks whether
// the files are what they should be.
func TestLife(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("containers need root")
	}
	ctx := t.Context()
	bin, err := filepath.Abs(filepath.Join(repository, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	// t.TempDir is too long for the sockets below it
	tmp, err := os.MkdirTemp("/var/tmp", "bt-")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(tmp, "b")
	t.Cleanup(func() {
		if err := os.RemoveAll(tmp); err != nil {
			t.Error(err)
		}
	})
	c, err := baseline.Start(ctx, bin, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", dir, err)
		}
		mounts, err := os.ReadFile("/proc/self/mounts")
		if err != nil || strings.Contains(string(mounts), dir) {
			t.Errorf("something is mounted in %s (%v)", dir, err)
		}
	})
	image, err := c.Import(ctx, func(dir string) error { return baseline.Untar(ctx, filepath.Join(repository, "build/tiny.tar"), dir) })
	if err != nil {
		t.Fatal(err)
	}
	first := create(t, c, image)
	if err := first.Run(ctx, "sh", "-c", "echo kept >/file"); err != nil {
		t.Fatal(err)
	}
	if err := first.End(ctx); err != nil {
		t.Fatal(err)
	}
	snapshot, err := first.Commit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	second, third := create(t, c, snapshot), create(t, c, snapshot)
	expect(t, second, "kept\n", 0, "cat", "/file")
	if err := second.Run(ctx, "rm", "/file"); err != nil {
		t.Fatal(err)
	}
	expect(t, third, "kept\n", 0, "cat", "/file")
	expect(t, third, "", 3, "sh", "-c", "exit 3")
	if err := third.Run(ctx, "false"); err == nil {
		t.Error("a command that fails was taken for one that succeeds")
	}
	if err := second.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	if _, _, err := second.Exec(ctx, "true"); err == nil {
		t.Error("a deleted container runs a command")
	}
}

func create(t *testing.T, c *baseline.Containerd, snapshot string) *baseline.Container {
	t.Helper()
	k, err := c.Create(t.Context(), snapshot)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func expect(t *testing.T, k *baseline.Container, want string, wantCode int, args ...string) {
	t.Helper()
	out, code, err := k.Exec(t.Context(), args...)
	if err != nil || string(out) != want || code != wantCode {
		t.Errorf("%q: output %q, code %d, error %v; want %q and %d", args, out, code, err, want, wantCode)
	}
}
