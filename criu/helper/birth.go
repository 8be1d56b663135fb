package helper

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A process whose parent ended is a child of the stem, which is a child subreaper, and may
// be in a session whose leader ended too. CRIU gives it that session by forking it in a
// process for the purpose, which ends before any restored process is made a subreaper
// again: the kernel then gives the orphan to PID 1. So the root of the tree is made one at
// its birth. CRIU has no hook there: it is traced until then, and the newborn, which stands
// before its first instruction, is made to call prctl(2).

const (
	traceFork  = 1 << 1 // PTRACE_O_TRACEFORK
	traceVfork = 1 << 2
	traceClone = 1 << 3
	eventStop  = 128 // PTRACE_EVENT_STOP
)

// watchBirth begins to trace CRIU, which is about to make the root, whose pid inside is
// given. The channel gets one result: when the root is a subreaper, or CRIU has ended.
func watchBirth(criu, root int) (<-chan error, error) {
	seized, born := make(chan error, 1), make(chan error, 1)
	go func() {
		// Only the thread that traces may ask.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := ptrace(unix.PTRACE_SEIZE, criu, 0, traceFork|traceVfork|traceClone)
		seized <- err
		if err == nil {
			born <- awaitBirth(criu, root)
		}
	}()
	if err := <-seized; err != nil {
		return nil, fmt.Errorf("trace CRIU: %w", err)
	}
	return born, nil
}

// awaitBirth follows CRIU until it has made the root, and lets both go.
func awaitBirth(criu, root int) error {
	for {
		ws, err := waitFor(criu)
		if err != nil || !ws.Stopped() {
			return err // it ended, which is told elsewhere
		}
		pass := uintptr(0) // the signal that it gets
		switch event := int(ws) >> 16; event {
		case unix.PTRACE_EVENT_FORK, unix.PTRACE_EVENT_VFORK, unix.PTRACE_EVENT_CLONE:
			child, err := unix.PtraceGetEventMsg(criu)
			found := false
			if err == nil {
				found, err = newborn(int(child), root)
			}
			if found || err != nil {
				return errors.Join(err, ptrace(unix.PTRACE_DETACH, criu, 0, 0))
			}
		case 0:
			pass = uintptr(ws.StopSignal())
		}
		if err := ptrace(unix.PTRACE_CONT, criu, 0, pass); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
}

// newborn lets a process go that CRIU has just made; the root as a subreaper.
func newborn(pid, root int) (found bool, err error) {
	ws, err := waitFor(pid)
	if err != nil || !ws.Stopped() {
		return false, err
	}
	defer func() { err = errors.Join(err, ptrace(unix.PTRACE_DETACH, pid, 0, 0)) }()
	if inside, err := insidePID(pid); err != nil || inside != root {
		return false, err
	}
	return true, makeSubreaper(pid)
}

// makeSubreaper has a process that stands behind a system call make another one.
func makeSubreaper(pid int) error {
	var was unix.PtraceRegs
	if err := unix.PtraceGetRegs(pid, &was); err != nil {
		return err
	}
	now := was
	callPrctl(&now, unix.PR_SET_CHILD_SUBREAPER, 1)
	if err := unix.PtraceSetRegs(pid, &now); err != nil {
		return err
	}
	if err := ptrace(unix.PTRACE_SINGLESTEP, pid, 0, 0); err != nil {
		return err
	}
	ws, err := waitFor(pid)
	if err != nil || !ws.Stopped() || ws.StopSignal() != unix.SIGTRAP {
		return fmt.Errorf("make the root a subreaper: status %#x: %w", uint32(ws), err)
	}
	if err := unix.PtraceGetRegs(pid, &now); err != nil {
		return err
	}
	if now.PC() != was.PC() || callResult(&now) != 0 {
		return fmt.Errorf("make the root a subreaper: %d", callResult(&now))
	}
	keepCall(&was)
	return unix.PtraceSetRegs(pid, &was)
}

func waitFor(pid int) (unix.WaitStatus, error) {
	for {
		var ws unix.WaitStatus
		if _, err := unix.Wait4(pid, &ws, unix.WALL, nil); err != unix.EINTR {
			return ws, err
		}
	}
}

// insidePID is the pid that a process of the host's has in its own namespace.
func insidePID(pid int) (int, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, err
	}
	ids := strings.Fields(field(string(b), "NSpid"))
	if len(ids) == 0 {
		return 0, errors.New("malformed status file")
	}
	return strconv.Atoi(ids[len(ids)-1])
}

// findCRIU finds the CRIU that this process has had started: a child of its child's, and
// in another namespace.
func findCRIU() (int, error) {
	for _, child := range childrenOf("self") {
		for _, pid := range childrenOf(child) {
			b, err := os.ReadFile("/proc/" + pid + "/status")
			if err == nil && len(strings.Fields(field(string(b), "NSpid"))) > 1 {
				return strconv.Atoi(pid)
			}
		}
	}
	return 0, errors.New("CRIU is not there")
}

func childrenOf(pid string) []string {
	// Each thread has children of its own. No character in it is special.
	lists, _ := filepath.Glob("/proc/" + pid + "/task/*/children")
	var all []string
	for _, l := range lists {
		if b, err := os.ReadFile(l); err == nil {
			all = append(all, strings.Fields(string(b))...)
		}
	}
	return all
}
