package criu

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// logLevel is CRIU's: errors and warnings.
const logLevel = 2

// sysProcAttr puts a helper into a session of its own: signals for the daemon's are not its.
func sysProcAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// logTail keeps the first kilobytes of what a helper complains about.
type logTail struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logTail) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	const most = 4096
	if room := most - l.b.Len(); room > 0 {
		l.b.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}

func (l *logTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(l.b.String())
}

func stemAmong(pid1 int, children []string) (int, error) {
	var self unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/exe", pid1), &self); err != nil {
		return 0, &Error{Code: CodeGone, PID: 1, Message: "the sandbox has ended", Err: err}
	}
	root := 0
	for _, f := range children {
		var exe unix.Stat_t
		if unix.Stat("/proc/"+f+"/exe", &exe) != nil || exe.Dev != self.Dev || exe.Ino != self.Ino {
			continue
		}
		text, err := os.ReadFile("/proc/" + f + "/status")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
				ids := strings.Fields(rest)
				if root != 0 {
					return 0, &Error{Code: CodeUnsupported, Message: "two processes claim to be the stem; one of them was started by a command"}
				}
				if _, err := fmt.Sscan(ids[len(ids)-1], &root); err != nil {
					return 0, errors.New("malformed status file")
				}
			}
		}
	}
	if root == 0 {
		return 0, &Error{Code: CodeGone, Message: "the sandbox has no stem"}
	}
	return root, nil
}
