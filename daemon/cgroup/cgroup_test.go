package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Every test that moves processes runs on the host's own hierarchy, and on its
// version 2 tree where a hybrid host has that too.
func onEach(t *testing.T, test func(t *testing.T, h *Hierarchy)) {
	h, err := Detect()
	if err != nil {
		t.Fatal(err)
	}
	t.Run(fmt.Sprintf("v%d", h.version), func(t *testing.T) { test(t, h) })
	if h.version == V1 && h.unified != "" {
		t.Run("v2", func(t *testing.T) { test(t, Unified(h.unified)) })
	}
}

// newGroup makes a group; whatever is in it at the end is killed.
func newGroup(t testing.TB, h *Hierarchy) *Group {
	t.Helper()
	path := fmt.Sprintf("/cairn-cgroup-test-%d/%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-"))
	for _, d := range h.dirs(path) {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	g, err := h.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := g.Kill(ctx, nil); err != nil {
			t.Error(err)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		for _, p := range []string{path, filepath.Dir(path)} {
			eventually(t, func() error { return h.Remove(p) })
		}
	})
	return g
}

func eventually(t testing.TB, check func() error) {
	t.Helper()
	deadline, tick := time.After(10*time.Second), time.NewTicker(2*time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatal("not in time: ", err)
		case <-tick.C:
		}
	}
}

// run starts a shell script inside the group.
func run(t testing.TB, g *Group, script string) *exec.Cmd {
	t.Helper()
	// It waits for a line, so that it does nothing before it is in the group.
	cmd := exec.Command("sh", "-c", "read go; "+script)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for _, d := range g.h.dirs(g.path) {
		if d == g.dir("cpuset") && g.h.version == V1 {
			continue // takes no process before it was given CPUs
		}
		if err := writeFile(d, "cgroup.procs", fmt.Sprint(cmd.Process.Pid)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := fmt.Fprintln(in, "go"); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// ticks is the CPU time that a process has used.
func ticks(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(b))[0]
}

func TestFreeze(t *testing.T) {
	onEach(t, func(t *testing.T, h *Hierarchy) {
		ctx := t.Context()
		g := newGroup(t, h)
		cmd := run(t, g, "while :; do :; done")
		for range 3 {
			if err := g.Freeze(ctx); err != nil {
				t.Fatal(err)
			}
			if ok, err := g.Frozen(); err != nil || !ok {
				t.Fatal("not frozen", err)
			}
			before := ticks(t, cmd.Process.Pid)
			timer := time.NewTimer(30 * time.Millisecond)
			<-timer.C
			if after := ticks(t, cmd.Process.Pid); after != before {
				t.Fatalf("it ran while frozen: %s, then %s ns", before, after)
			}
			if err := g.Freeze(ctx); err != nil { // twice is once
				t.Fatal(err)
			}
			if err := g.Thaw(ctx); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() error {
				if ticks(t, cmd.Process.Pid) == before {
					return errors.New("it does not run again")
				}
				return nil
			})
		}
	})
}

func TestFreezeCancelled(t *testing.T) {
	onEach(t, func(t *testing.T, h *Hierarchy) {
		g := newGroup(t, h)
		run(t, g, "sleep 1000")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Freeze(ctx); err == nil {
			t.Fatal("no error")
		}
		if ok, _ := g.Frozen(); ok {
			t.Fatal("frozen after an error")
		}
	})
}

func TestProcesses(t *testing.T) {
	onEach(t, func(t *testing.T, h *Hierarchy) {
		g := newGroup(t, h)
		cmd := run(t, g, "sleep 1000 & sleep 1000 & wait")
		eventually(t, func() error {
			pids, err := g.Processes()
			if err != nil || len(pids) != 3 || !slices.Contains(pids, cmd.Process.Pid) {
				return fmt.Errorf("%v, %w", pids, err)
			}
			return nil
		})
	})
}

func TestKillSpares(t *testing.T) {
	onEach(t, func(t *testing.T, h *Hierarchy) {
		g := newGroup(t, h)
		keep := run(t, g, "exec sleep 1000").Process.Pid
		run(t, g, "sleep 1000 & sleep 1000 & wait")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := g.Kill(ctx, func([]int) []int { return []int{keep} }); err != nil {
			t.Fatal(err)
		}
		pids, err := g.Processes()
		if err != nil || !slices.Equal(pids, []int{keep}) {
			t.Fatalf("left: %v, want %d: %v", pids, keep, err)
		}
		if ok, _ := g.Frozen(); ok {
			t.Fatal("frozen after the kill")
		}
	})
}

// What forks faster than it could be killed one by one is killed all the same.
func TestKillForkBomb(t *testing.T) {
	onEach(t, func(t *testing.T, h *Hierarchy) {
		g := newGroup(t, h)
		if h.version == V1 {
			if err := g.SetLimits(Limits{PIDs: 300}); err != nil {
				t.Fatal(err)
			}
		}
		// With a limit: as many as there may be. Without: each is replaced by its child.
		bomb := `f() { while :; do f & done; }; f`
		if h.version == V2 {
			file := filepath.Join(t.TempDir(), "bomb")
			if err := os.WriteFile(file, []byte(`sh "$0" &`), 0o644); err != nil {
				t.Fatal(err)
			}
			bomb = "for i in 1 2 3 4 5 6 7 8; do sh " + file + " & done; wait; sleep 1000"
		}
		run(t, g, bomb)
		eventually(t, func() error {
			if pids, _ := g.Processes(); len(pids) < 3 {
				return errors.New("it does not burn")
			}
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start := time.Now()
		if err := g.Kill(ctx, nil); err != nil {
			t.Fatal(err)
		}
		t.Logf("killed in %v", time.Since(start))
		if pids, err := g.Processes(); err != nil || len(pids) != 0 {
			t.Fatalf("left: %v, %v", pids, err)
		}
	})
}

func TestGone(t *testing.T) {
	onEach(t, func(t *testing.T, h *Hierarchy) {
		if _, err := h.Open("/cairn-cgroup-test-none"); !errors.Is(err, ErrGone) {
			t.Fatal(err)
		}
		g := newGroup(t, h)
		if err := h.Remove(g.path); err != nil {
			t.Fatal(err)
		}
		if err := g.Freeze(t.Context()); !errors.Is(err, ErrGone) {
			t.Errorf("freeze: %v", err)
		}
		if _, err := g.Processes(); !errors.Is(err, ErrGone) {
			t.Errorf("processes: %v", err)
		}
		if _, err := g.Usage(); !errors.Is(err, ErrGone) {
			t.Errorf("usage: %v", err)
		}
		if err := g.Kill(t.Context(), nil); err != nil {
			t.Errorf("kill: %v", err)
		}
		if err := h.Remove(g.path); err != nil {
			t.Errorf("remove again: %v", err)
		}
	})
}

func TestLimits(t *testing.T) {
	h, err := Detect()
	if err != nil {
		t.Fatal(err)
	}
	g := newGroup(t, h)
	files := map[string]string{"cpu": "cpu.cfs_quota_us", "memory": "memory.limit_in_bytes", "pids": "pids.max"}
	if h.version == V2 {
		files = map[string]string{"cpu": "cpu.max", "memory": "memory.max", "pids": "pids.max"}
	}
	read := func(c string) string {
		b, err := os.ReadFile(filepath.Join(g.dir(c), files[c]))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(b))[0]
	}
	none := map[string]string{"cpu": read("cpu"), "memory": read("memory"), "pids": read("pids")}
	for _, l := range []Limits{
		{CPUs: 0.5, MemoryBytes: 64 << 20, PIDs: 10},
		{CPUs: 2, MemoryBytes: 256 << 20, PIDs: 100}, // up
		{CPUs: 1, MemoryBytes: 32 << 20, PIDs: 20},   // down
	} {
		if err := g.SetLimits(l); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"cpu": fmt.Sprint(int(l.CPUs * 100000)), "memory": fmt.Sprint(l.MemoryBytes), "pids": fmt.Sprint(l.PIDs)}
		for c := range files {
			if got := read(c); got != want[c] {
				t.Errorf("%+v: %s is %s, want %s", l, files[c], got, want[c])
			}
		}
	}
	if err := g.SetLimits(Limits{}); err != nil {
		t.Fatal(err)
	}
	for c := range files {
		if got := read(c); got != none[c] {
			t.Errorf("without a limit %s is %s, want %s", files[c], got, none[c])
		}
	}
	if err := g.SetLimits(Limits{CPUs: -1}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("negative: %v", err)
	}
}

// Version 2's files, written in a directory that stands for a group: this tests
// what is written, where a host with both versions has the controllers in version 1.
func TestLimitsFormat(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "g")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"cgroup.freeze", "cgroup.events", "cpu.max", "memory.max", "memory.swap.max", "pids.max"} {
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for f, text := range map[string]string{"cpu.stat": "usage_usec 1500\nuser_usec 1000\n", "memory.current": "5000\n", "memory.stat": "anon 1\ninactive_file 2000\n", "pids.current": "7\n", "memory.events": "oom 3\noom_kill 2\n"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	g, err := Unified(root).Open("/g")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for _, c := range []struct {
		l    Limits
		want [4]string
	}{
		{Limits{CPUs: 1.5, MemoryBytes: 1 << 20, PIDs: 12}, [4]string{"150000 100000", "1048576", "0", "12"}},
		{Limits{CPUs: 0.0001}, [4]string{"1000 100000", "max", "max", "max"}},
		{Limits{}, [4]string{"max 100000", "max", "max", "max"}},
	} {
		for _, f := range []string{"cpu.max", "memory.max", "memory.swap.max", "pids.max"} {
			if err := os.Truncate(filepath.Join(dir, f), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.SetLimits(c.l); err != nil {
			t.Fatal(err)
		}
		for i, f := range []string{"cpu.max", "memory.max", "memory.swap.max", "pids.max"} {
			if b, _ := os.ReadFile(filepath.Join(dir, f)); string(b) != c.want[i] {
				t.Errorf("%+v: %s is %q, want %q", c.l, f, b, c.want[i])
			}
		}
	}
	u, err := g.Usage()
	if want := (Usage{CPUNanos: 1_500_000, MemoryBytes: 3000, PIDs: 7}); err != nil || u != want {
		t.Errorf("usage %+v, want %+v: %v", u, want, err)
	}
	if n := g.OOMKills(); n != 2 {
		t.Errorf("oom kills: %d", n)
	}
	if err := os.Remove(filepath.Join(dir, "pids.max")); err != nil {
		t.Fatal(err)
	}
	if err := g.SetLimits(Limits{PIDs: 1}); !errors.Is(err, ErrNoController) {
		t.Errorf("without the controller: %v", err)
	}
	if err := g.SetLimits(Limits{}); err != nil {
		t.Errorf("without the controller and a limit: %v", err)
	}
}

func TestMounts(t *testing.T) {
	const hybrid = `30 20 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro
31 30 0:27 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
34 30 0:29 /some/part /elsewhere rw - cgroup cgroup rw,pids`
	h := &Hierarchy{v1: map[string]string{}}
	for line := range strings.Lines(hybrid) {
		h.addMount(strings.TrimSpace(line))
	}
	want := map[string]string{"cpu": "/sys/fs/cgroup/cpu,cpuacct", "cpuacct": "/sys/fs/cgroup/cpu,cpuacct", "freezer": "/sys/fs/cgroup/freezer"}
	if h.unified != "/sys/fs/cgroup/unified" || len(h.v1) != len(want) {
		t.Fatalf("%+v", h)
	}
	for c, dir := range want {
		if h.v1[c] != dir {
			t.Errorf("%s is at %q, want %q", c, h.v1[c], dir)
		}
	}
}

func BenchmarkFreezeThaw(b *testing.B) {
	h, err := Detect()
	if err != nil {
		b.Fatal(err)
	}
	for name, h := range map[string]*Hierarchy{"own": h, "unified": Unified(h.unified)} {
		if h.unified == "" {
			continue
		}
		b.Run(name, func(b *testing.B) {
			release, err := h.Prime(fmt.Sprintf("/cairn-cgroup-prime-%d", os.Getpid()))
			if err != nil {
				b.Fatal(err)
			}
			defer func() {
				if err := release(); err != nil {
					b.Error(err)
				}
			}()
			g := newGroup(b, h)
			run(b, g, "sleep 1000 & sleep 1000 & wait")
			for b.Loop() {
				if err := g.Freeze(b.Context()); err != nil {
					b.Fatal(err)
				}
				if err := g.Thaw(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
