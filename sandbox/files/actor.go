package files

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// secbitNoSetuidFixup keeps a thread's capabilities when its file system uid
// stops being 0 (include/uapi/linux/securebits.h).
const secbitNoSetuidFixup = 1 << 2

// actorCaps is what a change to files needs. CAP_SYS_RESOURCE is left out on
// purpose: with it, ext4 and XFS let a thread exceed quotas and use the blocks
// reserved for root.
const actorCaps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH |
	1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID

// actor is a thread that makes files as an id of the sandbox. Its umask is 0. It
// is valid on the goroutine that as started only.
type actor struct{ r *Root }

// as runs fn on a thread of its own with the file system ids of the inside uid
// and gid, waits for it, and lets the thread die. A panic of fn is passed on.
func (r *Root) as(uid, gid uint32, fn func(*actor) error) error {
	var (
		err      error
		panicked any
		done     = make(chan struct{})
	)
	go func() {
		// Never unlocked: the runtime ends a thread whose goroutine ends locked, so
		// that no other goroutine ever runs with these credentials.
		runtime.LockOSThread()
		defer close(done)
		defer func() { panicked = recover() }()
		a := &actor{r: r}
		if err = a.become(uid, gid); err == nil {
			err = fn(a)
		}
	}()
	<-done
	if panicked != nil {
		panic(panicked)
	}
	return err
}

func (a *actor) become(uid, gid uint32) error {
	// The umask belongs to the fs struct that all threads share until now.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare fs: %w", err)
	}
	unix.Umask(0)
	bits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("get securebits: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, uintptr(bits|secbitNoSetuidFixup), 0, 0, 0); err != nil {
		return fmt.Errorf("set securebits: %w", err)
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&head, &caps[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	caps[0].Effective = caps[0].Permitted & actorCaps
	caps[1].Effective = 0
	if err := unix.Capset(&head, &caps[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return a.be(uid, gid)
}

// be makes the thread create files for the inside ids uid and gid from now on.
func (a *actor) be(uid, gid uint32) error {
	if uid >= IDs || gid >= IDs {
		return because(ErrInvalid, "owner %d:%d is not within 0..%d", uid, gid, IDs-1)
	}
	u, g := int(a.r.uid+uid), int(a.r.gid+gid)
	// These calls report the previous id and no error: ask again to be sure.
	_, _ = unix.SetfsgidRetGid(g)
	_, _ = unix.SetfsuidRetUid(u)
	if got, _ := unix.SetfsgidRetGid(-1); got != g {
		return fmt.Errorf("setfsgid %d: still %d", g, got)
	}
	if got, _ := unix.SetfsuidRetUid(-1); got != u {
		return fmt.Errorf("setfsuid %d: still %d", u, got)
	}
	return nil
}

// change is as, refused where the root is read-only.
func (r *Root) change(uid, gid uint32, fn func(*actor) error) error {
	if r.readOnly {
		return because(ErrReadOnly, "this view can't be changed")
	}
	return r.as(uid, gid, fn)
}
