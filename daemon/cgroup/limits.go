package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrNoController means that the host lacks the controller for a limit that was
// asked for.
var ErrNoController = errors.New("the host has no such cgroup controller")

// Limits of a group. Zero means none.
type Limits struct {
	CPUs        float64 // CPU time per wall time, in cores
	MemoryBytes int64   // swap included
	PIDs        int64   // processes and threads
}

// cpuPeriodMicros is the period in which CPU time is dealt out: the kernel's default.
const cpuPeriodMicros = 100_000

// minQuotaMicros is the smallest quota that the kernel takes.
const minQuotaMicros = 1_000

// SetLimits changes the limits of the running group. Memory in use beyond a new
// limit is reclaimed, or the error is EBUSY (version 1).
func (g *Group) SetLimits(l Limits) error {
	if l.CPUs < 0 || l.MemoryBytes < 0 || l.PIDs < 0 {
		return fmt.Errorf("negative limit: %w", unix.EINVAL)
	}
	return errors.Join(g.setCPU(l.CPUs), g.setMemory(l.MemoryBytes), g.setPIDs(l.PIDs))
}

func quota(cpus float64) int64 {
	return max(int64(cpus*cpuPeriodMicros), minQuotaMicros)
}

func (g *Group) setCPU(cpus float64) error {
	if g.h.version == V2 {
		v := "max"
		if cpus > 0 {
			v = strconv.FormatInt(quota(cpus), 10)
		}
		return g.set("cpu", "cpu.max", fmt.Sprintf("%s %d", v, cpuPeriodMicros), cpus == 0)
	}
	if cpus == 0 {
		return g.set("cpu", "cpu.cfs_quota_us", "-1", true)
	}
	if err := g.set("cpu", "cpu.cfs_period_us", strconv.Itoa(cpuPeriodMicros), false); err != nil {
		return err
	}
	return g.set("cpu", "cpu.cfs_quota_us", strconv.FormatInt(quota(cpus), 10), false)
}

func (g *Group) setMemory(bytes int64) error {
	if g.h.version == V2 {
		if bytes == 0 {
			return errors.Join(g.set("memory", "memory.max", "max", true), g.set("memory", "memory.swap.max", "max", true))
		}
		return errors.Join(g.set("memory", "memory.max", strconv.FormatInt(bytes, 10), false),
			g.set("memory", "memory.swap.max", "0", true))
	}
	v := strconv.FormatInt(bytes, 10)
	if bytes == 0 {
		v = "-1"
	}
	const mem, memsw = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
	// mem <= memsw must hold at each step: raise the outer one first, lower it last.
	if _, err := os.Stat(filepath.Join(g.dir("memory"), memsw)); err != nil { // no controller, or no swap accounting
		return g.set("memory", mem, v, bytes == 0)
	}
	err := g.set("memory", mem, v, bytes == 0)
	if errors.Is(err, unix.EINVAL) {
		if err = g.set("memory", memsw, v, bytes == 0); err == nil {
			err = g.set("memory", mem, v, bytes == 0)
		}
		return err
	}
	return errors.Join(err, g.set("memory", memsw, v, bytes == 0))
}

func (g *Group) setPIDs(n int64) error {
	v := "max"
	if n > 0 {
		v = strconv.FormatInt(n, 10)
	}
	return g.set("pids", "pids.max", v, n == 0)
}

// set writes one limit. A controller that is absent is an error only where the
// limit means something.
func (g *Group) set(controller, file, value string, optional bool) error {
	dir := g.dir(controller)
	if dir == "" {
		if optional {
			return nil
		}
		return fmt.Errorf("%w: %s", ErrNoController, controller)
	}
	err := writeFile(dir, file, value)
	if !errors.Is(err, os.ErrNotExist) {
		if err != nil {
			return fmt.Errorf("set %s to %s: %w", file, value, err)
		}
		return nil
	}
	if _, e := os.Stat(dir); e != nil {
		return gone(e)
	}
	if optional {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrNoController, controller)
}
