package runtime

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"cairn/daemon/cgroup"
)

// leaks looks for what a state directory without containers must not have left:
// processes, mounts, control groups, slots, runtime state.
func leaks(dir string) error {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		b, _ := os.ReadFile(procPath(pid, "cmdline"))
		if bytes.Contains(b, []byte(dir+"/")) {
			return fmt.Errorf("process %d is left: %s", pid, bytes.ReplaceAll(b, []byte{0}, []byte{' '}))
		}
		if g, _ := os.ReadFile(procPath(pid, "cgroup")); bytes.Contains(g, []byte("/cairn-test/"+filepath.Base(dir)+"/")) {
			return fmt.Errorf("process %d is left in a sandbox's cgroup: %s", pid, bytes.ReplaceAll(b, []byte{0}, []byte{' '}))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	if i := strings.Index(string(mounts), dir+"/"); i >= 0 {
		return fmt.Errorf("a mount is left: %.200s", mounts[i:])
	}
	cg, err := cgroup.Detect()
	if err != nil {
		return err
	}
	if groups, err := cg.Children("/cairn-test/" + filepath.Base(dir)); err != nil || len(groups) > 0 {
		return fmt.Errorf("control groups are left: %v, %w", groups, err)
	}
	return leftFiles(dir)
}

// leftFiles says what is left of containers in the directories of the host, of containerd
// and of runc.
func leftFiles(dir string) error {
	const shims = "c/s"
	for _, d := range []string{"s", shims, "run/runc/cairn", "c/state/io.containerd.runtime.v2.task/cairn"} {
		entries, err := os.ReadDir(filepath.Join(dir, d))
		if err != nil {
			continue
		}
		for _, e := range entries {
			path := filepath.Join(dir, d, e.Name())
			// A shim that containerd had to kill leaves its socket behind.
			if d == shims && !listens(path) {
				continue
			}
			return fmt.Errorf("%s is left in %s", e.Name(), d)
		}
	}
	return nil
}

// listens says whether somebody does at a socket.
func listens(path string) bool {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}
