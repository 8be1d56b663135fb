package helper

import "golang.org/x/sys/unix"

// callPrctl makes what stands behind a system call instruction go through it once more.
func callPrctl(r *unix.PtraceRegs, option, value uint64) {
	const instruction = 2 // bytes
	r.Rip -= instruction
	r.Rax, r.Rdi, r.Rsi, r.Rdx, r.R10, r.R8 = unix.SYS_PRCTL, option, value, 0, 0, 0
	keepCall(r)
}

// keepCall says that there is no system call to be made again.
func keepCall(r *unix.PtraceRegs) { r.Orig_rax = ^uint64(0) }

func callResult(r *unix.PtraceRegs) int64 { return int64(r.Rax) }
