package runtime

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cairn/sandbox"

	"golang.org/x/sys/unix"
)

func acquire(t testing.TB, r *Runtime) *Container {
	t.Helper()
	c, _, err := r.Acquire(t.Context(), sandbox.NetworkNone)
	if err != nil {
		t.Fatal(err)
	}
	return c.(*Container)
}

// sh runs a script inside, to its end.
func sh(t *testing.T, c sandbox.Container, id, script string) (string, int) {
	t.Helper()
	begin(t, c, id, script)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	e, err := c.Guest().Wait(ctx, id, 0)
	if err != nil {
		t.Fatal(err)
	}
	return output(t, c, id), e.ExitCode
}

// begin starts a script inside.
func begin(t *testing.T, c sandbox.Container, id, script string) {
	t.Helper()
	_, err := c.Guest().Start(t.Context(), sandbox.GuestStart{ID: id, Command: []string{"/bin/busybox", "sh", "-c", script}, Env: []string{"PATH=/bin"}})
	if err != nil {
		t.Fatal(err)
	}
}

func TestParallel(t *testing.T) {
	h := newHost(t)
	r := h.open(t, nil)
	var mu sync.Mutex
	names, bases := map[string]bool{}, map[uint32]bool{}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			c, _, err := r.Acquire(t.Context(), sandbox.NetworkNone)
			if err != nil {
				t.Error(err)
				return
			}
			if err := c.Guest().Ready(t.Context()); err != nil {
				t.Error(err)
			}
			mu.Lock()
			names[c.Name()], bases[c.IDBase()] = true, true
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(names) != 20 || len(bases) != 20 {
		t.Fatalf("%d names and %d ranges for 20 containers", len(names), len(bases))
	}
	list, err := r.Names(t.Context())
	if err != nil || len(list) != 20 || !slices.IsSorted(list) {
		t.Fatal(list, err)
	}
	for name := range names {
		wg.Go(func() {
			if err := r.Destroy(t.Context(), name); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := r.Count(); n != 0 {
		t.Errorf("%d are left", n)
	}
}

func TestPool(t *testing.T) {
	h := newHost(t)
	r := h.open(t, func(o *Options) { o.Warm.None = 3 })
	full := func() error {
		if n := r.Warm(sandbox.NetworkNone); n != 3 {
			return fmt.Errorf("%d warm", n)
		}
		return nil
	}
	eventually(t, full)
	var got []*Container
	for i := range 5 {
		c, warm, err := r.Acquire(t.Context(), sandbox.NetworkNone)
		if err != nil {
			t.Fatal(err)
		}
		if i < 3 && !warm { // later ones may find one that was refilled
			t.Errorf("container %d is not from the pool", i)
		}
		got = append(got, c.(*Container))
	}
	eventually(t, full)
	if names, _ := r.Names(t.Context()); len(names) != 5 {
		t.Errorf("the pool's are listed: %v", names)
	}
	// One dies in the pool, and is replaced.
	r.pool.mu.Lock()
	victim := r.pool.ready[sandbox.NetworkNone][0]
	r.pool.mu.Unlock()
	if _, err := r.Open(t.Context(), victim.Name()); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("a blank one can be opened: %v", err)
	}
	if err := unix.Kill(victim.PID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if n := r.Count(); n != 8 || full() != nil {
			return fmt.Errorf("%d containers, %w", n, full())
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.byName[victim.Name()] != nil {
			return fmt.Errorf("the dead one is still there")
		}
		return nil
	})
	for _, c := range got {
		if err := r.Destroy(t.Context(), c.Name()); err != nil {
			t.Error(err)
		}
	}
	// With another specification, blank ones are not taken back.
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	later := h.open(t, func(o *Options) { o.Warm.None = 1; o.ShmBytes = 1 << 20 })
	eventually(t, func() error {
		if w, n := later.Warm(sandbox.NetworkNone), later.Count(); w != 1 || n != 1 {
			return fmt.Errorf("%d warm of %d", w, n)
		}
		return nil
	})
	c := acquire(t, later)
	if out, _ := sh(t, c, "shm", "df -k /dev/shm"); !strings.Contains(out, "1024") {
		t.Errorf("an old one was used: %s", out)
	}
}

func TestRefused(t *testing.T) {
	h := newHost(t)
	r := h.open(t, func(o *Options) { o.MaxSlots = 1 })
	if _, _, err := r.Acquire(t.Context(), "host"); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("network host: %v", err)
	}
	if _, _, err := r.Acquire(t.Context(), sandbox.NetworkEgress); sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		t.Errorf("no egress: %v", err)
	}
	c := acquire(t, r)
	if _, _, err := r.Acquire(t.Context(), sandbox.NetworkNone); sandbox.CodeOf(err) != sandbox.CodeExhausted {
		t.Errorf("no slot: %v", err)
	}
	if err := r.Destroy(t.Context(), c.Name()); err != nil {
		t.Fatal(err)
	}
	acquire(t, r) // the slot is free again

	private := filepath.Join(h.dir, "private")
	if err := os.MkdirAll(filepath.Join(private, "skel"), 0o700); err != nil {
		t.Fatal(err)
	}
	o, err := testOptions(h.dir, logger(t))
	if err != nil {
		t.Fatal(err)
	}
	o.Skeleton = filepath.Join(private, "skel")
	if _, err := New(t.Context(), o); err == nil || !strings.Contains(err.Error(), "chmod o+x "+private) {
		t.Errorf("a path that cannot be passed: %v", err)
	}
}

func TestKillAll(t *testing.T) {
	h := newHost(t)
	r := h.open(t, nil)
	c := acquire(t, r)
	pids, err := c.Processes()
	if err != nil || len(pids) != 2 || !slices.Contains(pids, c.PID()) {
		t.Fatalf("a blank container has %v (PID 1 is %d): %v", pids, c.PID(), err)
	}
	if err := c.Limit(t.Context(), sandbox.Resources{PIDs: 200}); err != nil {
		t.Fatal(err)
	}
	for i, script := range []string{
		"f() { while :; do f & done; }; f",                       // as many as there may be
		"while :; do (setsid sleep 1000 &) ; done",               // leaving the process group
		"trap '' TERM INT HUP; while :; do sleep 0.01; done",     // not listening
		"cp /.cairn/cairn-init /tmp/x; exec /.cairn/cairn-init ", // posing as the stem
	} {
		begin(t, c, fmt.Sprintf("p%d", i), script)
		if err := c.KillAll(t.Context()); err != nil {
			t.Fatalf("%s: %v", script, err)
		}
		left, err := c.Processes()
		if err != nil || len(left) > 2 || !slices.Contains(left, c.PID()) {
			t.Fatalf("%s: left %v: %v", script, left, err)
		}
		if err := c.Guest().Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// While frozen, too.
	begin(t, c, "last", "sleep 1000")
	if err := c.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.KillAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, err := c.Processes(); err != nil || !slices.Equal(left, pids) && len(left) != 2 {
		t.Fatal(left, err)
	}
}

func TestLimitsHold(t *testing.T) {
	h := newHost(t)
	r := h.open(t, nil)
	c := acquire(t, r)
	t.Run("memory", func(t *testing.T) {
		if err := c.Limit(t.Context(), sandbox.Resources{MemoryBytes: 32 << 20}); err != nil {
			t.Fatal(err)
		}
		if out, code := sh(t, c, "m", `awk 'BEGIN { for (x = "a"; length(x) < 134217728; ) x = x x }'`); code != 128+9 {
			t.Errorf("128 MiB in 32: exit code %d: %s", code, out)
		}
		if n := c.group.OOMKills(); n == 0 {
			t.Error("nothing was killed for want of memory")
		}
		u, err := c.Usage()
		if err != nil || u.MemoryBytes > 32<<20 {
			t.Errorf("usage %+v: %v", u, err)
		}
	})
	t.Run("pids", func(t *testing.T) {
		if err := c.Limit(t.Context(), sandbox.Resources{PIDs: 20}); err != nil {
			t.Fatal(err)
		}
		out, _ := sh(t, c, "f", "for i in $(seq 50); do sleep 5 & done; echo started")
		if strings.Contains(out, "started") {
			t.Errorf("50 processes of 20: %s", out)
		}
		if u, err := c.Usage(); err != nil || u.PIDs > 20 || u.PIDs < 2 {
			t.Errorf("usage %+v: %v", u, err)
		}
		if err := c.KillAll(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("cpu", func(t *testing.T) {
		if err := c.Limit(t.Context(), sandbox.Resources{CPUs: 0.1}); err != nil {
			t.Fatal(err)
		}
		before, err := c.Usage()
		if err != nil {
			t.Fatal(err)
		}
		sh(t, c, "c", "timeout 1 sh -c 'while :; do :; done'")
		after, err := c.Usage()
		if err != nil {
			t.Fatal(err)
		}
		if used := after.CPUNanos - before.CPUNanos; used > 300e6 || used < 10e6 {
			t.Errorf("%d ms of CPU time in a second at 0.1", used/1e6)
		}
	})
	if err := c.Limit(t.Context(), sandbox.Resources{}); err != nil {
		t.Fatal(err)
	}
	if err := c.Limit(t.Context(), sandbox.Resources{MemoryBytes: -1}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("negative: %v", err)
	}
}

// What is in /run/cairn belongs to somebody hostile.
func TestHostileIO(t *testing.T) {
	h := newHost(t)
	r := h.open(t, nil)
	c := acquire(t, r)
	victim := filepath.Join(h.dir, "victim")
	if err := os.WriteFile(victim, []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	for i, prepare := range []string{
		"rm -rf generation .generation",
		"ln -sf " + victim + " generation; ln -sf " + victim + " .generation",
		"rm -f generation .generation; mkdir -p generation/a/b .generation/c",
		"rm -rf generation .generation; mkfifo generation .generation",
	} {
		sh(t, c, fmt.Sprintf("g%d", i), "cd /run/cairn; "+prepare)
		if err := c.SetGeneration(int64(i)); err != nil {
			t.Fatalf("%s: %v", prepare, err)
		}
		if out, _ := sh(t, c, fmt.Sprintf("r%d", i), "cat /run/cairn/generation"); out != fmt.Sprintf("%d\n", i) {
			t.Errorf("%s: read %q", prepare, out)
		}
	}
	// Nested deeper than descriptors last, and links that lead out.
	deepen(t, c.IODir(), 3000)
	if err := r.Destroy(t.Context(), c.Name()); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "kept" {
		t.Errorf("a file outside was changed: %q, %v", b, err)
	}
	if err := os.Remove(victim); err != nil {
		t.Fatal(err)
	}
}
