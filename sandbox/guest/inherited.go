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
// sandbox. That nobody sends one of them to PID 1 by accident is the kernel's care: in its
// own namespace the default of PID 1 is to drop what has no handler.
func defaultInherited() {
	for n := uintptr(1); n <= lastSignal; n++ {
		var now sigaction
		if rtSigaction(n, nil, &now) == 0 && now.handler == sigIgnore {
			// Refused only for SIGKILL and SIGSTOP, which cannot be ignored.
			_ = rtSigaction(n, &sigaction{handler: sigDefault}, nil)
		}
	}
}

func rtSigaction(n uintptr, act, old *sigaction) syscall.Errno {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, n,
		uintptr(unsafe.Pointer(act)), uintptr(unsafe.Pointer(old)), unsafe.Sizeof(sigaction{}.mask), 0, 0)
	return errno
}
