package runtime

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cairn/sandbox"
)

// median times fn n times.
func median(b *testing.B, n int, fn func() error) time.Duration {
	b.Helper()
	took := make([]time.Duration, n)
	for i := range took {
		start := time.Now()
		if err := fn(); err != nil {
			b.Fatal(err)
		}
		took[i] = time.Since(start)
	}
	slices.Sort(took)
	return took[n/2]
}

// pss sums the proportional memory, in bytes, of the processes that match.
func pss(b *testing.B, match func(pid int, cmdline string) bool) int64 {
	b.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		b.Fatal(err)
	}
	var sum int64
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cmd, _ := os.ReadFile(procPath(pid, "cmdline"))
		if !match(pid, string(bytes.ReplaceAll(cmd, []byte{0}, []byte{' '}))) {
			continue
		}
		roll, _ := os.ReadFile(procPath(pid, "smaps_rollup"))
		for line := range strings.Lines(string(roll)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
				kb, _ := strconv.ParseInt(f[1], 10, 64)
				sum += kb << 10
			}
		}
	}
	return sum
}

// BenchmarkOperations reports the medians, in microseconds, of what callers wait for.
func BenchmarkOperations(b *testing.B) {
	h := newHost(b)
	r := h.open(b, nil)
	for b.Loop() {
		var all []*Container
		report := func(name string, d time.Duration) { b.ReportMetric(float64(d.Microseconds()), name+"-µs") }
		report("cold", median(b, 15, func() error {
			c, _, err := r.Acquire(b.Context(), sandbox.NetworkNone)
			if err == nil {
				all = append(all, c.(*Container))
			}
			return err
		}))
		c := all[0]
		report("freeze", median(b, 200, func() error {
			if err := c.Freeze(b.Context()); err != nil {
				return err
			}
			return c.Thaw(b.Context())
		}))
		report("killall", median(b, 100, func() error { return c.KillAll(b.Context()) }))
		report("destroy", median(b, len(all), func() error {
			c, all = all[0], all[1:]
			return r.Destroy(b.Context(), c.Name())
		}))
	}
	b.StopTimer()
	if err := r.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	r = h.open(b, func(o *Options) { o.Warm.None = 10; o.RefillDelay = time.Hour })
	eventually(b, func() error {
		if n := r.Warm(sandbox.NetworkNone); n != 10 {
			return fmt.Errorf("%d warm", n)
		}
		return nil
	})
	b.ReportMetric(float64(median(b, 10, func() error {
		_, warm, err := r.Acquire(b.Context(), sandbox.NetworkNone)
		if err == nil && !warm {
			err = fmt.Errorf("not warm")
		}
		return err
	}).Microseconds()), "warm-µs")
}

// BenchmarkIdleMemory reports the memory of an idle container, its shim apart.
func BenchmarkIdleMemory(b *testing.B) {
	h := newHost(b)
	r := h.open(b, nil)
	const n = 30
	for b.Loop() {
		for range n {
			acquire(b, r)
		}
		timer := time.NewTimer(3 * time.Second) // idle means idle
		<-timer.C
		in := map[int]bool{}
		r.mu.Lock()
		for _, c := range r.byName {
			pids, err := c.Processes()
			if err != nil {
				b.Fatal(err)
			}
			for _, p := range pids {
				in[p] = true
			}
		}
		r.mu.Unlock()
		mb := func(v int64) float64 { return float64(v) / n / (1 << 20) }
		b.ReportMetric(mb(pss(b, func(pid int, _ string) bool { return in[pid] })), "guest-MiB")
		b.ReportMetric(mb(pss(b, func(_ int, cmd string) bool {
			return strings.Contains(cmd, "shim-runc") && strings.Contains(cmd, h.dir)
		})), "shim-MiB")
		b.ReportMetric(float64(pss(b, func(pid int, _ string) bool { return pid == h.cd.PID() }))/(1<<20), "containerd-MiB")
		names, err := r.Names(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		for _, name := range names {
			if err := r.Destroy(b.Context(), name); err != nil {
				b.Fatal(err)
			}
		}
	}
}
