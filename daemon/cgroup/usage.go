package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Usage is what a group uses now. What the host does not count is zero.
type Usage struct {
	CPUNanos    int64 // since the group was made
	MemoryBytes int64 // without file pages that can be dropped at once
	PIDs        int64 // processes and threads
}

// Usage reads what the group uses.
func (g *Group) Usage() (Usage, error) {
	if _, err := os.Stat(g.main); err != nil {
		return Usage{}, gone(err)
	}
	var u Usage
	var err error
	num := func(controller, file string) int64 {
		dir := g.dir(controller)
		if dir == "" {
			return 0
		}
		n, e := readNumber(filepath.Join(dir, file))
		err = errors.Join(err, e)
		return n
	}
	u.PIDs = num("pids", "pids.current")
	if g.h.version == V2 {
		u.CPUNanos = 1000 * g.stat("cpu", "cpu.stat", "usage_usec")
		u.MemoryBytes = num("memory", "memory.current") - g.stat("memory", "memory.stat", "inactive_file")
	} else {
		u.CPUNanos = num("cpuacct", "cpuacct.usage")
		u.MemoryBytes = num("memory", "memory.usage_in_bytes") - g.stat("memory", "memory.stat", "total_inactive_file")
	}
	u.MemoryBytes = max(u.MemoryBytes, 0)
	return u, err
}

// OOMKills counts the processes of the group that were killed for want of memory.
func (g *Group) OOMKills() int64 {
	if g.h.version == V2 {
		return g.stat("memory", "memory.events", "oom_kill")
	}
	return g.stat("memory", "memory.oom_control", "oom_kill")
}

// stat reads one key of a flat-keyed file; 0 when it is not there.
func (g *Group) stat(controller, file, key string) int64 {
	dir := g.dir(controller)
	if dir == "" {
		return 0
	}
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			n, _ := strconv.ParseInt(v, 10, 64)
			return n
		}
	}
	return 0
}

func readNumber(path string) (int64, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}
