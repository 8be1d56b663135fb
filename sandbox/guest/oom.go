package guest

import "golang.org/x/sys/unix"

// ownOOMAdj reports whether this process's OOM score is adjusted.
func ownOOMAdj() bool {
	b, err := readSmall("/proc/self/oom_score_adj", 64)
	return err == nil && string(b) != "0\n"
}

// resetOOMAdj gives a child the score of an ordinary process, so that the kernel ends it
// rather than the stem. Failing that, it runs with the stem's score.
func resetOOMAdj(pid int) {
	fd, err := unix.Open("/proc/"+itoa(pid)+"/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_, _ = unix.Write(fd, []byte{'0'})
	unix.Close(fd)
}
