package runtime

import (
	"bytes"
	"fmt"
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
	for _, d := range []string{"s", "c/s", "run/runc/cairn", "c/state/io.containerd.runtime.v2.task/cairn"} {
		entries, err := os.ReadDir(filepath.Join(dir, d))
		if err == nil && len(entries) > 0 {
			return fmt.Errorf("%s is left in %s", entries[0].Name(), d)
		}
	}
	return nil
}
