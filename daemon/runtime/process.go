package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// errNotRunning means that the process that was looked for has ended.
var errNotRunning = errors.New("the process has ended")

// process is PID 1 of a container, held by a descriptor so that it cannot be
// taken for another process that is given its id later.
type process struct {
	pid   int
	start uint64 // in clock ticks since boot
	fd    *os.File
	done  chan struct{} // closed when it has ended

	closing sync.Once
	closed  chan struct{}
}

// openProcess opens a running process. With start other than 0 it must have
// started then. The error is errNotRunning when there is no such process.
func openProcess(pid int, start uint64) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, errNotRunning
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	// Non-blocking, so that waiting for it is the work of Go's poller and not of a thread.
	p := &process{pid: pid, fd: os.NewFile(uintptr(fd), "pidfd"), done: make(chan struct{}), closed: make(chan struct{})}
	started, state, err := startTime(pid)
	if err != nil || state == 'Z' || state == 'X' || (start != 0 && started != start) {
		p.fd.Close()
		return nil, errors.Join(errNotRunning, err)
	}
	p.start = started
	go p.watch()
	return p, nil
}

// watch closes done when the process ends.
func (p *process) watch() {
	defer close(p.closed)
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return
	}
	err = raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 && err == nil
	})
	if err == nil {
		close(p.done)
	}
}

// signal sends a signal to the process itself, never to another one of its id.
func (p *process) signal(sig unix.Signal) error {
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) { err = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	return errors.Join(failed, err)
}

// close stops watching.
func (p *process) close() {
	p.closing.Do(func() { p.fd.Close() })
	<-p.closed
}

// startTime reads when a process started and its state letter, proc_pid_stat(5).
func startTime(pid int) (uint64, byte, error) {
	f, err := statFields(pid)
	if err != nil {
		return 0, 0, err
	}
	n, err := strconv.ParseUint(f[19], 10, 64)
	return n, f[0][0], err
}

// parentOf reads the parent of a process.
func parentOf(pid int) (int, error) {
	f, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(f[1])
}

// statFields gives what follows the command name, which is anything at all.
func statFields(pid int) ([]string, error) {
	b, err := os.ReadFile(procPath(pid, "stat"))
	if err != nil {
		return nil, err
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 20 {
		return nil, fmt.Errorf("stat of process %d has %d fields", pid, len(f))
	}
	return f, nil
}

func procPath(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}

// bootID tells this run of the kernel from others.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// sameExecutable says whether two processes run the same file.
func sameExecutable(a, b int) bool {
	var x, y unix.Stat_t
	return unix.Stat(procPath(a, "exe"), &x) == nil && unix.Stat(procPath(b, "exe"), &y) == nil && x.Dev == y.Dev && x.Ino == y.Ino
}
