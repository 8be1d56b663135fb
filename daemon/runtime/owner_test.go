package runtime

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cairn/sandbox"

	"golang.org/x/sys/unix"
)

// owner is a daemon that is killed by its test: it prints the names of what it acquires, and
// goes on starting containers until it dies.
func owner(root string) {
	ctx := context.Background()
	die := func(err error) {
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
	_, err := startContainerd(ctx, root, slog.New(slog.DiscardHandler))
	die(err)
	o, err := testOptions(root, slog.New(slog.DiscardHandler))
	die(err)
	o.Warm.None = 3
	r, err := New(ctx, o)
	die(err)
	for range 2 {
		c, _, err := r.Acquire(ctx, sandbox.NetworkNone)
		die(err)
		fmt.Println("acquired", c.Name())
	}
	for {
		c, _, err := r.Acquire(ctx, sandbox.NetworkNone)
		die(err)
		die(r.Destroy(ctx, c.Name()))
	}
}

// startOwner runs an owner until it has acquired two containers.
func startOwner(t *testing.T, dir string) (*exec.Cmd, []string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), ownerVar+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	var names []string
	for sc := bufio.NewScanner(out); len(names) < 2 && sc.Scan(); {
		name, ok := strings.CutPrefix(sc.Text(), "acquired ")
		if !ok {
			t.Fatal(sc.Text())
		}
		names = append(names, name)
	}
	if len(names) != 2 {
		t.Fatal("the owner did not get that far")
	}
	return cmd, names
}

// A daemon is killed in the middle of starting and destroying containers. The
// next one finds what was acquired, takes back what is blank, and removes the rest.
func TestOwnerKilled(t *testing.T) {
	h := newHost(t)
	if err := h.cd.Stop(t.Context()); err != nil { // the owner brings its own
		t.Fatal(err)
	}
	for round := range 4 {
		cmd, names := startOwner(t, h.dir)
		timer := time.NewTimer(time.Duration(round) * 130 * time.Millisecond)
		<-timer.C
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		var err error
		if h.cd, err = startContainerd(t.Context(), h.dir, logger(t)); err != nil {
			t.Fatal(err)
		}
		o, err := testOptions(h.dir, logger(t))
		if err != nil {
			t.Fatal(err)
		}
		o.Warm.None = 3
		r, err := New(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		have, err := r.Names(t.Context())
		if err != nil || len(have) < 2 || len(have) > 3 { // the one in hand may have been acquired
			t.Fatalf("acquired: %v, %v", have, err)
		}
		for _, name := range names {
			c, err := r.Open(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Guest().Ready(t.Context()); err != nil {
				t.Error(err)
			}
			if err := c.Freeze(t.Context()); err != nil {
				t.Error(err)
			}
			if err := c.Thaw(t.Context()); err != nil {
				t.Error(err)
			}
		}
		for _, name := range have {
			if err := r.Destroy(t.Context(), name); err != nil {
				t.Error(err)
			}
		}
		eventually(t, func() error {
			if w, n := r.Warm(sandbox.NetworkNone), r.Count(); w != 3 || n != 3 {
				return fmt.Errorf("%d warm of %d", w, n)
			}
			return nil
		})
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := h.cd.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if h.cd, err = startContainerd(t.Context(), h.dir, logger(t)); err != nil {
		t.Fatal(err)
	}
}

// containerd dies; it is started again, and no sandbox notices.
func TestContainerdKilled(t *testing.T) {
	h := newHost(t)
	r := h.open(t, nil)
	c, _, err := r.Acquire(t.Context(), sandbox.NetworkNone)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		n := h.cd.Starts()
		if err := unix.Kill(h.cd.PID(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := c.Guest().Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			if h.cd.Starts() == n {
				return fmt.Errorf("not started again")
			}
			return nil
		})
	}
	select {
	case <-c.Done():
		t.Fatal("the container died with containerd")
	default:
	}
	// Destroyed while containerd is away, a container is gone when it is back.
	if err := unix.Kill(h.cd.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := r.Destroy(t.Context(), c.Name()); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	if _, err := r.Open(t.Context(), c.Name()); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Error(err)
	}
	if _, warm, err := r.Acquire(t.Context(), sandbox.NetworkNone); err != nil || warm {
		t.Error(warm, err)
	}
}

// PID 1 dies: everybody hears of it, and what is left can be destroyed.
func TestDeath(t *testing.T) {
	h := newHost(t)
	r := h.open(t, nil)
	c, _, err := r.Acquire(t.Context(), sandbox.NetworkNone)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(c.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("nobody was told")
	}
	if _, err := r.Open(t.Context(), c.Name()); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("open a dead one: %v", err)
	}
	if names, _ := r.Names(t.Context()); len(names) != 1 {
		t.Errorf("names: %v", names)
	}
	errs := make(chan error)
	for range 3 {
		go func() { errs <- r.Destroy(t.Context(), c.Name()) }()
	}
	for range 3 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if err := r.Destroy(t.Context(), c.Name()); err != nil {
		t.Error(err)
	}
	if err := r.Destroy(t.Context(), "never-was"); err != nil {
		t.Error(err)
	}
	if names, _ := r.Names(t.Context()); len(names) != 0 {
		t.Errorf("names: %v", names)
	}
}

// A slot that was only begun, or whose container vanished, does no harm.
func TestHalfMade(t *testing.T) {
	h := newHost(t)
	slots := slotDirs(filepath.Join(h.dir, "s"))
	if err := os.Mkdir(string(slots), 0o711); err != nil {
		t.Fatal(err)
	}
	for slot := range 3 {
		if ok, err := slots.take(slot); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	for slot, rec := range map[int]record{1: {Name: "ctr-one"}, 2: {Name: "ctr-two", PID: os.Getpid(), StartTime: 1}} {
		if err := slots.write(slot, rec); err != nil {
			t.Fatal(err)
		}
	}
	if err := slots.markAcquired(2); err != nil {
		t.Fatal(err)
	}
	r := h.open(t, nil)
	if names, err := r.Names(t.Context()); err != nil || len(names) != 1 || names[0] != "ctr-two" {
		t.Fatal(names, err)
	}
	if _, err := r.Open(t.Context(), "ctr-two"); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Error(err)
	}
	if err := r.Destroy(t.Context(), "ctr-two"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if n, err := slots.taken(); err != nil || len(n) != 0 {
			return fmt.Errorf("slots: %v, %w", n, err)
		}
		return nil
	})
}
