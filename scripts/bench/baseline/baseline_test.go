package baseline_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"cairn/scripts/bench/baseline"
)

const repository = "../../.."

// start starts a containerd, and ends it with the test.
func start(t *testing.T) (c *baseline.Containerd, image string) {
	t.Helper()
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
	if c, err = baseline.Start(ctx, bin, dir); err != nil {
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
	image, err = c.Import(ctx, func(dir string) error { return baseline.Untar(ctx, filepath.Join(repository, "build/tiny.tar"), dir) })
	if err != nil {
		t.Fatal(err)
	}
	return c, image
}

// TestLife takes a container through everything that is timed, and looks whether
// the files are what they should be.
func TestLife(t *testing.T) {
	ctx := t.Context()
	c, image := start(t)
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

// TestCheckpoint restores a shell that counts, in its container and in another.
func TestCheckpoint(t *testing.T) {
	ctx := t.Context()
	c, image := start(t)
	// It has a file open for a moment only when it is asked: the files are not restored.
	program := []string{"sh", "-c", "n=0; while :; do n=$((n+1)); if [ -e /ask ]; then rm /ask; echo $n >/m; mv /m /n; fi; sleep 0.01; done"}
	k, err := c.Create(ctx, image, program...)
	if err != nil {
		t.Fatal(err)
	}
	until(t, k, 20)
	images, err := k.Checkpoint(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if images.Bytes() == 0 {
		t.Error("images without bytes")
	}
	until(t, k, 200)
	if err := k.Restore(ctx, images); err != nil {
		t.Fatal(err)
	}
	// Both go on with what was in memory, not with the file.
	if n := until(t, k, 20); n >= 200 {
		t.Errorf("restored, it goes on with %d", n)
	}
	other, err := c.CreateFrom(ctx, image, images, program...)
	if err != nil {
		t.Fatal(err)
	}
	if n := until(t, other, 20); n >= 200 {
		t.Errorf("restored in another container, it goes on with %d", n)
	}
}

// until asks the container how far it has counted until that is enough, and returns the
// first answer.
func until(t *testing.T, k *baseline.Container, enough int) (first int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		out, code, err := k.Exec(t.Context(), "sh", "-c", "touch /ask; until [ -e /n ]; do :; done; cat /n; rm /n")
		n, bad := strconv.Atoi(strings.TrimSpace(string(out)))
		if err = errors.Join(err, bad); err != nil || code != 0 {
			t.Fatalf("ask how far it has counted: %v, code %d", err, code)
		}
		if first == 0 {
			first = n
		}
		if n >= enough {
			return first
		}
	}
	t.Fatalf("it does not count to %d", enough)
	return 0
}
