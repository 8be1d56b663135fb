package guest

import (
	"syscall"
	"unsafe"
)

// sigaction is the kernel's struct of that name on 64-bit machines.
type sigaction struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

const (
	sigDefault = 0
	sigIgnore  = 1
	lastSignal = 64
)

// defaultInherited gives every signal that whoever started this program ignores its
// default again: ignoring is inherited through exec, and would reach every process of the
// sandbox.
func defaultInherited() {
	for n := uintptr(1); n <= lastSignal; n++ {
		var now sigaction
		if rtSigaction(n, nil, &now) == 0 && now.handler == sigIgnore {
			// Refused only for SIGKILL and SIGSTOP, which cannot be ignored.
			_ = rtSigaction(n, &sigaction{handler: sigDefault}, nil)
		}
	}
}

// ignoreUncaught ignores every signal that has its default, which are those that the Go
// runtime leaves to C libraries. PID 1 has to: the kernel drops them for the first process
// of a namespace only as long as that process's first thread does not block them. The
// runtime blocks all signals for moments, and one that comes then finds another thread
// and ends the sandbox. The stem, which inherits this, undoes it (defaultInherited).
func ignoreUncaught() {
	for n := uintptr(1); n <= lastSignal; n++ {
		var now sigaction
		if rtSigaction(n, nil, &now) == 0 && now.handler == sigDefault {
			// Refused for SIGKILL and SIGSTOP; these nobody inside can send to PID 1.
			_ = rtSigaction(n, &sigaction{handler: sigIgnore}, nil)
		}
	}
}

func rtSigaction(n uintptr, act, old *sigaction) syscall.Errno {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, n,
		uintptr(unsafe.Pointer(act)), uintptr(unsafe.Pointer(old)), unsafe.Sizeof(sigaction{}.mask), 0, 0)
	return errno
}
