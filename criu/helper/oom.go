package helper

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"cairn/criu/internal/frame"
)

// oomKills is how many processes of the container's control groups the kernel has ended as
// there was no memory for them: CRIU can't tell why a process that it restores ends.
func oomKills(cgroups int) (sum int) {
	for i := range cgroups {
		procs, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", frame.FDCgroup+i))
		if err != nil {
			continue
		}
		// Of version 1, and of version 2.
		for _, name := range []string{"memory.oom_control", "memory.events"} {
			b, err := os.ReadFile(filepath.Join(filepath.Dir(procs), name))
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(b)) {
				if v, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
					n, _ := strconv.Atoi(v)
					sum += n
				}
			}
		}
	}
	return sum
}
