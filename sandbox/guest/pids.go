package guest

import (
	"runtime"

	"golang.org/x/sys/unix"
)

const (
	// firstPID is the least pid of the stem and of everything below it. It is also what the
	// kernel goes back to when it has counted through.
	firstPID = 300
	// ownThreads is more threads than PID 1 ever has at work.
	ownThreads = 6
)

// leaveLowPIDs sees to it that no process but PID 1 gets a pid below firstPID, and that
// PID 1's threads have such. A checkpoint of the stem's tree is restored with the pids it
// had, maybe in another sandbox, where PID 1's threads must not have taken them.
func leaveLowPIDs() {
	// Threads that the Go runtime has are not made later.
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
	// Only the host may set what the kernel counts from. A thread uses up a number like a
	// process, in some ten microseconds; it ends with a goroutine that stays locked to it.
	tid := make(chan int)
	for last := 0; last < firstPID-1; {
		go func() {
			runtime.LockOSThread()
			tid <- unix.Gettid()
		}()
		n := <-tid
		if n < last {
			return // counted through before: a container that is full of processes
		}
		last = n
	}
}
