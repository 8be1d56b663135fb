package guest

import (
	"syscall"
	"time"
	"unsafe"

	"cairn/sandbox/stem/wire"

	"golang.org/x/sys/unix"
)

// ended is a process that has ended and has not been reaped.
type ended struct {
	pid    int
	how    wire.How
	value  int
	rusage unix.Rusage
}

// siginfo is struct siginfo_t for SIGCHLD on 64-bit Linux.
type siginfo struct {
	signo, errno, code int32
	_                  int32
	pid                int32
	uid                uint32
	status             int32
	_                  [100]byte
}

// peek returns a child that has ended, without reaping it, or ok false when there is none.
func peek() (e ended, ok bool) {
	var info siginfo
	if waitid(&info, unix.WNOHANG, &e.rusage) != 0 || info.pid == 0 {
		return ended{}, false
	}
	e.pid = int(info.pid)
	const cldExited = 1
	if info.code == cldExited {
		e.how, e.value = wire.Exited, int(info.status)&0xff
	} else {
		e.how, e.value = wire.Signaled, int(info.status)
	}
	return e, true
}

// awaitEnd returns when a child has ended and has not been reaped, or false at once when
// there is no child.
func awaitEnd() bool {
	var info siginfo
	return waitid(&info, 0, nil) == 0
}

// waitid looks at any child that has ended.
func waitid(info *siginfo, flags int, usage *unix.Rusage) syscall.Errno {
	for {
		_, _, errno := syscall.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(info)),
			uintptr(flags|unix.WEXITED|unix.WNOWAIT), uintptr(unsafe.Pointer(usage)), 0)
		if errno != unix.EINTR {
			return errno
		}
	}
}

// reap releases the process that peek returned.
func (e ended) reap() {
	for {
		_, err := syscall.Wait4(e.pid, nil, syscall.WNOHANG, nil)
		if err != syscall.EINTR {
			return
		}
	}
}

func (e ended) status(startedUS int64) wire.Status {
	return wire.Status{
		How:         e.how,
		Value:       e.value,
		StartedUS:   startedUS,
		FinishedUS:  time.Now().UnixMicro(),
		MaxRSSBytes: e.rusage.Maxrss * 1024,
		UserUS:      e.rusage.Utime.Sec*1e6 + e.rusage.Utime.Usec,
		SystemUS:    e.rusage.Stime.Sec*1e6 + e.rusage.Stime.Usec,
	}
}
