package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// pssOfContainers is the proportional share of memory, bytes, of every process that
// exists for the sake of a container of the containerd at socket: the shims and all
// below them. count is the number of shims.
func pssOfContainers(socket string) (pss int64, count int, err error) {
	parents, shims, err := processes(socket)
	if err != nil {
		return 0, 0, err
	}
	for pid := range parents {
		if !below(pid, shims, parents) {
			continue
		}
		n, err := pssOf(pid)
		if err != nil {
			return 0, 0, err
		}
		pss += n
	}
	return pss, len(shims), nil
}

// below says whether pid or one of its ancestors is in set.
func below(pid int, set map[int]bool, parents map[int]int) bool {
	for ; pid > 1; pid = parents[pid] {
		if set[pid] {
			return true
		}
	}
	return false
}

// processes gives the parent of every process, and which of them are shims of the
// containerd at socket.
func processes(socket string) (parents map[int]int, shims map[int]bool, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, nil, err
	}
	parents, shims = map[int]int{}, map[int]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue // it has ended
		}
		// The name, in brackets, may hold anything.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if parents[pid], err = strconv.Atoi(fields[1]); err != nil {
			return nil, nil, fmt.Errorf("parent of %d: %w", pid, err)
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && bytes.Contains(cmdline, []byte("containerd-shim")) && bytes.Contains(cmdline, []byte(socket+"\x00")) {
			shims[pid] = true
		}
	}
	return parents, shims, nil
}

// pssOf is the proportional share of one process, 0 when it has ended.
func pssOf(pid int) (int64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, nil // it has ended
	}
	defer f.Close()
	for scan := bufio.NewScanner(f); scan.Scan(); {
		if rest, ok := strings.CutPrefix(scan.Text(), "Pss:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10, err
		}
	}
	return 0, nil
}

// available is how much memory the machine can still give, bytes.
func available() (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/meminfo has no MemAvailable")
}
