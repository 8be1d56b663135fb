package helper

import "golang.org/x/sys/unix"

// callPrctl makes what stands behind a system call instruction go through it once more.
func callPrctl(r *unix.PtraceRegs, option, value uint64) {
	const instruction = 4 // bytes
	r.Pc -= instruction
	r.Regs[8] = unix.SYS_PRCTL
	copy(r.Regs[:5], []uint64{option, value, 0, 0, 0})
}

// keepCall says that there is no system call to be made again.
func keepCall(*unix.PtraceRegs) {}

func callResult(r *unix.PtraceRegs) int64 { return int64(r.Regs[0]) }
