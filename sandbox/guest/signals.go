package guest

import (
	"os"
	"os/signal"
	"syscall"
)

// signals are those a role acts upon, one pending notice each.
type signals struct {
	child chan os.Signal // SIGCHLD
	term  chan os.Signal // SIGTERM
	wake  chan os.Signal // SIGUSR1: look again at what is on disk
}

// catchSignals takes every signal that can be caught. Left alone, some would end a Go
// program, and anybody in the sandbox may send them to PID 1. They are caught and dropped
// rather than ignored, because started processes inherit what is ignored.
func catchSignals() signals {
	s := signals{
		child: make(chan os.Signal, 1),
		term:  make(chan os.Signal, 1),
		wake:  make(chan os.Signal, 1),
	}
	dropped := make(chan os.Signal, 1)
	for n := syscall.Signal(1); n <= 31; n++ {
		switch n {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGURG, syscall.SIGPROF:
			// The first two can't be caught; the runtime itself uses the others.
		case syscall.SIGCHLD:
			signal.Notify(s.child, n)
		case syscall.SIGTERM:
			signal.Notify(s.term, n)
		case syscall.SIGUSR1:
			signal.Notify(s.wake, n)
		default:
			signal.Notify(dropped, n)
		}
	}
	return s
}
