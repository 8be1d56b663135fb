package guest

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// procStat is what the roles need of /proc/PID/stat.
type procStat struct {
	parent     int
	startTicks int64
}

// readStat reads /proc/PID/stat; it fails when there is no such process.
func readStat(pid int) (procStat, error) {
	fd, err := unix.Open("/proc/"+itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return procStat{}, err
	}
	defer unix.Close(fd)
	b, err := readFD(fd, 4096)
	if err != nil {
		return procStat{}, err
	}
	return parseStat(b)
}

// parseStat parses the text of a stat file. The second field is the process's name in
// parentheses, which may itself hold spaces and parentheses: what counts comes after the last.
func parseStat(b []byte) (procStat, error) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return procStat{}, unix.EINVAL
	}
	const first, parent, start = 3, 4, 22 // numbers of fields in proc(5)
	fields := bytes.Fields(b[i+1:])
	if len(fields) <= start-first {
		return procStat{}, unix.EINVAL
	}
	ppid, err := strconv.Atoi(string(fields[parent-first]))
	if err != nil {
		return procStat{}, err
	}
	ticks, err := strconv.ParseInt(string(fields[start-first]), 10, 64)
	if err != nil {
		return procStat{}, err
	}
	return procStat{parent: ppid, startTicks: ticks}, nil
}

// sameProcess reports whether the process that had pid and started at startTicks exists,
// if only as a zombie.
func sameProcess(pid int, startTicks int64) bool {
	st, err := readStat(pid)
	return err == nil && st.startTicks == startTicks
}

// findStem looks among the children of PID 1 for a stem, which is there without PID 1
// having started it when it was restored. It returns 0 when there is none.
func findStem() int {
	var self unix.Stat_t
	if unix.Stat("/proc/self/exe", &self) != nil {
		return 0
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == 1 {
			continue
		}
		st, err := readStat(pid)
		if err != nil || st.parent != 1 {
			continue
		}
		var exe unix.Stat_t
		if unix.Stat("/proc/"+e.Name()+"/exe", &exe) != nil || exe.Dev != self.Dev || exe.Ino != self.Ino {
			continue
		}
		fd, err := unix.Open("/proc/"+e.Name()+"/cmdline", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		cmdline, err := readFD(fd, 4096)
		unix.Close(fd)
		if err == nil && bytes.HasSuffix(cmdline, []byte("\x00"+stemRole+"\x00")) {
			return pid
		}
	}
	return 0
}
