package helper

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"

	"cairn/criu/internal/frame"

	"golang.org/x/sys/unix"
)

// checkLocks refuses a process with a record lock (fcntl) on a file that it also has
// mapped. CRIU takes the lock, then opens the file for the mapping and closes it again;
// with that, the kernel drops every record lock that the process has on the file.
func (t *tree) checkLocks() error {
	locks, err := t.readAll("locks")
	if err != nil {
		return err
	}
	for pid, files := range recordLocks(locks) {
		maps, err := t.readAll(strconv.Itoa(pid) + "/maps")
		if err != nil {
			continue // not in the sandbox, or it has ended
		}
		if name, ok := mapped(maps, files); ok {
			return &refusal{frame.Failure{
				Code: "unsupported", PID: pid, Comm: t.comm(pid), Resource: "lock on " + name,
				Message: "it has locked a file that it also has mapped, and would lose the lock; close the file (SQLite: the database, or use a journal other than WAL)",
			}}
		}
	}
	return nil
}

// recordLocks gives for each pid the files that it has locked, each as "major:minor:inode".
func recordLocks(table string) map[int]map[string]bool {
	locks := map[int]map[string]bool{}
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "POSIX" { // who waits for a lock has "->" there
			continue
		}
		pid, err := strconv.Atoi(f[4])
		if err != nil || pid <= 0 {
			continue
		}
		if locks[pid] == nil {
			locks[pid] = map[string]bool{}
		}
		locks[pid][f[5]] = true
	}
	return locks
}

// mapped gives the path of one of the files that a table of mappings has.
func mapped(maps string, files map[string]bool) (path string, ok bool) {
	for line := range strings.Lines(maps) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 6)
		if len(f) == 6 && files[f[3]+":"+f[4]] {
			return strings.TrimLeft(f[5], " "), true
		}
	}
	return "", false
}

// readAll reads a file below /proc whose size the sandbox decides.
func (t *tree) readAll(path string) (string, error) {
	fd, err := unix.Openat(int(t.proc.Fd()), path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	const most = 64 << 20
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && len(data) > most {
		err = errors.New("/proc/" + path + " is too large")
	}
	return string(data), err
}
