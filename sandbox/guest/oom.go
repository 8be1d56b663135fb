package guest

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// oomStep is how much rather the kernel ends a process of the agent's than the stem, when
// memory runs out, in thousandths of all memory.
const oomStep = 300

// childOOMAdj gives the OOM score adjustment for the stem's children: they go before it.
// Anyone may make that larger.
func childOOMAdj() string {
	const most = 1000
	b, err := readSmall("/proc/self/oom_score_adj", 64)
	if err != nil {
		return itoa(oomStep)
	}
	own, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return itoa(oomStep)
	}
	return itoa(min(own+oomStep, most))
}

// setOOMAdj gives a child its score. Failing that, it runs with the stem's.
func setOOMAdj(pid int, adj string) {
	fd, err := unix.Open("/proc/"+itoa(pid)+"/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_, _ = unix.Write(fd, []byte(adj))
	unix.Close(fd)
}
