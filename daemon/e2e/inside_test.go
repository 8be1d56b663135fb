package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"cairn/api/client"
	"cairn/api/types"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

func (h *host) processesOf(id string) ([]types.Process, error) {
	ctx, cancel := request()
	defer cancel()
	l, err := client.Get[types.ProcessList](h.client.ListProcesses(ctx, id))
	return l.Items, err
}

// pidsOf gives all processes of a sandbox. Its control group is found by the
// mark that processes in it have in their environment.
func (h *host) pidsOf(t fataler, id string) (pids []int) {
	t.Helper()
	p := ok(h.background(id, "sleep", "infinity"))(t)
	defer func() { done(t, h.signal(id, p.Id, "KILL")) }()
	mark := []byte("CAIRN_SANDBOX_ID=" + ok(h.sandbox(id))(t).Id + "\x00")
	for _, proc := range h.processes() {
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", proc.pid))
		if !bytes.Contains(env, mark) {
			continue
		}
		group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", proc.pid))
		done(t, err)
		for line := range strings.SplitSeq(string(group), "\n") {
			_, path, found := strings.Cut(line, ":freezer:")
			root := "/sys/fs/cgroup/freezer"
			if !found {
				if path, found = strings.CutPrefix(line, "0::"); !found || !strings.Contains(path, "/cairn/") {
					continue
				}
				root = "/sys/fs/cgroup"
			}
			raw, err := os.ReadFile(filepath.Join(root, path, "cgroup.procs"))
			done(t, err)
			for _, f := range strings.Fields(string(raw)) {
				n, err := strconv.Atoi(f)
				done(t, err)
				pids = append(pids, n)
			}
			return pids
		}
	}
	t.Fatalf("no process of sandbox %s was found", id)
	return nil
}

// inner gives the pid that a process has in its own namespace.
func inner(pid int) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.SplitSeq(string(b), "\n") {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "NSpid:" {
			n, _ := strconv.Atoi(f[len(f)-1])
			return n
		}
	}
	return 0
}

// firstPID gives PID 1 of a sandbox as the host sees it.
func (h *host) firstPID(t fataler, id string) int {
	t.Helper()
	pid := h.hostPID(t, id, 1)
	if pid == 0 {
		t.Fatalf("sandbox %s has no first process", id)
	}
	return pid
}

// hostPID gives the host's number of a process in a sandbox, 0 for none.
func (h *host) hostPID(t fataler, id string, pid int) int {
	t.Helper()
	for _, p := range h.pidsOf(t, id) {
		if inner(p) == pid {
			return p
		}
	}
	return 0
}
