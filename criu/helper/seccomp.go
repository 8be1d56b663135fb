package helper

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readFilters reads the system call filters of PID 1, as the kernel has them, the last
// installed one first. It needs the host's CAP_SYS_ADMIN. PID 1 stands still meanwhile,
// which is some ten microseconds.
func readFilters(pid int) (filters [][]byte, err error) {
	// Who seizes a process must be the thread that asks.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := ptrace(unix.PTRACE_SEIZE, pid, 0, 0); err != nil {
		return nil, fmt.Errorf("look at PID 1 of the sandbox, which a process in it may be tracing: %w", err)
	}
	defer func() { _ = ptrace(unix.PTRACE_DETACH, pid, 0, 0) }()
	if err := ptrace(unix.PTRACE_INTERRUPT, pid, 0, 0); err != nil {
		return nil, fmt.Errorf("stop PID 1 of the sandbox: %w", err)
	}
	for {
		var ws unix.WaitStatus
		_, err := unix.Wait4(pid, &ws, unix.WALL, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || !ws.Stopped() {
			return nil, fmt.Errorf("stop PID 1 of the sandbox: status %#x: %w", uint32(ws), err)
		}
		const eventStop = 128
		if int(ws)>>16 == eventStop {
			break
		}
		// It stands before a signal, which it is to get.
		if err := ptrace(unix.PTRACE_CONT, pid, 0, uintptr(ws.StopSignal())); err != nil {
			return nil, err
		}
	}
	for i := uintptr(0); ; i++ {
		const getFilter, maxInsns, insnLen = 0x420c, 4096, 8
		buf := make([]byte, maxInsns*insnLen)
		n, _, errno := unix.Syscall6(unix.SYS_PTRACE, getFilter, uintptr(pid), i, uintptr(unsafe.Pointer(&buf[0])), 0, 0)
		switch errno {
		case 0:
			filters = append(filters, buf[:n*insnLen])
		case unix.ENOENT, unix.EINVAL:
			// The kernel counts from the one that was installed first.
			slices.Reverse(filters)
			return filters, nil
		default:
			return nil, fmt.Errorf("read the system call filters of PID 1: %w", errno)
		}
	}
}

func ptrace(request, pid int, addr, data uintptr) error {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(pid), addr, data, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
