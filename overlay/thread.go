package overlay

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// secbitNoSetuidFixup keeps the capabilities of a thread whose file system
// user id changes.
const secbitNoSetuidFixup = 1 << 2

// onThread runs fn on an operating system thread that is thrown away
// afterwards, so that fn may change the thread's namespaces and identities.
// It is never the process's first thread: that one lends its namespaces to
// /proc/self and can't end.
func onThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// While this goroutine keeps the first thread, another
			// one is bound to run elsewhere.
			done <- onThread(fn)
			runtime.UnlockOSThread()
			return
		}
		done <- fn()
		// Locked still: the thread ends with the goroutine.
	}()
	return <-done
}

// becomeOwner gives the calling thread the file system identity uid:gid and
// leaves its capabilities as they are. Overlayfs makes its own entries in an
// idmapped upper as whoever mounts it, who must therefore have an identity
// inside the mapped range.
func becomeOwner(uid, gid uint32) error {
	if uid == 0 && gid == 0 {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, secbitNoSetuidFixup, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Setfsgid(int(gid)); err != nil {
		return err
	}
	return unix.Setfsuid(int(uid))
}
