package guest

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// firstPID is the least pid of the stem and of everything below it. It is also what the
	// kernel goes back to when it has counted through.
	firstPID = 300
	// ownThreads is more threads than PID 1 ever has at work.
	ownThreads = 6
	// lastThread is a thread id that is followed by room for threads that the Go runtime
	// makes in the place of those that ended.
	lastThread = 270
)

// leaveLowPIDs sees to it that no process but PID 1 gets a pid below firstPID, and that
// PID 1's threads have such. A checkpoint of the stem's tree is restored with the pids it
// had, maybe in another sandbox, where PID 1's threads must not have taken them.
func leaveLowPIDs() {
	// Only the host may set what the kernel counts from. A thread uses up a number like a
	// process, in some ten microseconds; it ends with a goroutine that stays locked to it.
	// It may be one of the threads from before, which is less than the last number then.
	tid := make(chan int)
	for last := 0; last < lastThread; {
		go func() {
			runtime.LockOSThread()
			tid <- unix.Gettid()
		}()
		last = <-tid
	}
	// Threads that the Go runtime has are not made later. Not before: what ends above may
	// be any thread that was idle.
	ready, done := make(chan struct{}), make(chan struct{})
	for range ownThreads {
		go func() {
			runtime.LockOSThread()
			ready <- struct{}{}
			<-done
			runtime.UnlockOSThread()
		}()
	}
	for range ownThreads {
		<-ready
	}
	close(done)
	// A process leaves nothing behind.
	for last := 0; last < firstPID-1; {
		pid, errno := forkAndExit()
		if errno != 0 {
			return
		}
		for {
			if _, err := unix.Wait4(pid, nil, 0, nil); err != unix.EINTR {
				break
			}
		}
		if pid < last {
			return
		}
		last = pid
	}
}

// forkAndExit makes a process that ends at once.
//
//go:noinline
//go:norace
//go:nocheckptr
func forkAndExit() (int, syscall.Errno) {
	const blockAll, setMask, maskSize = 0, 2, 8
	every, former := ^uint64(0), uint64(0)
	// No handler of the runtime's may run in the child.
	_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, blockAll, uintptr(unsafe.Pointer(&every)), uintptr(unsafe.Pointer(&former)), maskSize, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 && pid == 0 {
		for {
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, setMask, uintptr(unsafe.Pointer(&former)), 0, maskSize, 0, 0)
	return int(pid), errno
}
