package overlay

import (
	"context"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Target is a running container.
type Target struct {
	PID      int    // its PID 1, as the host numbers it
	UIDBase  uint32 // what user 0 inside is outside
	GIDBase  uint32
	Hostname string // set in its UTS namespace, unless ""
	Binds    []Bind // mounted unless something is mounted there already
}

// Bind is a host directory or file that a container sees, read-only.
type Bind struct {
	Source string // host path
	Target string // absolute path inside
}

// Stack is what an overlay is made of.
type Stack struct {
	Upper  string   // the layer that is written to
	Layers []string // below it, top first; the skeleton is not named
}

// Timings says where the time of an attach went.
type Timings struct {
	IDMap  time.Duration // cloning and mapping the pool
	Create time.Duration // making the overlay
	Switch time.Duration // replacing the root
}

// Prepared is an overlay made for one container and attached nowhere yet.
type Prepared struct {
	pool   *Pool
	target Target
	stack  Stack
	timing Timings

	mu    sync.Mutex
	pidfd *os.File
	mnt   *os.File
	binds []preparedBind
}

type preparedBind struct {
	tree   *os.File
	target string // relative to the root
}

// Prepare makes the overlay of a stack for a container, so that only the
// switch is left to do while the container is frozen. Nothing below the
// overlay's root is looked at before Attach, so a layer that is still being
// written to as the container's present upper may be among s.Layers, as long
// as nobody writes to it from the beginning of Attach on.
//
// Errors: ErrNotFound, ErrBadID, ErrTooDeep, ErrGone.
func (p *Pool) Prepare(ctx context.Context, t Target, s Stack) (_ *Prepared, err error) {
	if err := p.checkStack(s); err != nil {
		return nil, err
	}
	pr := &Prepared{pool: p, target: t, stack: s}
	defer func() {
		if err != nil {
			pr.Close()
		}
	}()
	fd, err := unix.PidfdOpen(t.PID, 0)
	if err != nil {
		return nil, procError(t.PID, os.NewSyscallError("pidfd_open", err))
	}
	pr.pidfd = os.NewFile(uintptr(fd), "pidfd")
	userns, err := p.openProc(t.PID, "ns/user", unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer userns.Close()
	// That pid was the process's all along if it still is.
	if err := pr.alive(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	err = onThread(func() error {
		start := time.Now()
		if err := becomeOwner(t.UIDBase, t.GIDBase); err != nil {
			return fmt.Errorf("take the identity of the range: %w", err)
		}
		if err := pr.openBinds(userns); err != nil {
			return err
		}
		base, end, err := p.mapped(userns)
		if err != nil {
			return err
		}
		defer end()
		pr.timing.IDMap = time.Since(start)
		start = time.Now()
		pr.mnt, err = overlayOf(base, s)
		pr.timing.Create = time.Since(start)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("overlay: prepare %s: %w", s.Upper, err)
	}
	return pr, nil
}

func (p *Pool) checkStack(s Stack) error {
	if err := checkID(s.Upper); err != nil {
		return err
	}
	for _, id := range s.Layers {
		if err := checkID(id); err != nil {
			return err
		}
		if id == s.Upper {
			return fmt.Errorf("overlay: layer %s is both upper and lower", id)
		}
	}
	return nil
}

// openBinds clones what is to be bound, read-only and without setuid
// programs or devices.
func (pr *Prepared) openBinds(userns *os.File) error {
	for _, b := range pr.target.Binds {
		rel := strings.TrimPrefix(path.Clean("/"+b.Target), "/")
		if rel == "" {
			return &BadMountPointError{Path: "/", What: "is the root itself"}
		}
		tree, err := openTree(b.Source)
		if err != nil {
			return fmt.Errorf("bind: %w", err)
		}
		pr.binds = append(pr.binds, preparedBind{tree, rel})
		err = unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH, &unix.MountAttr{
			Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
		})
		if err != nil {
			return fmt.Errorf("bind %s: %w", b.Source, err)
		}
		// Where the file system has no id maps, owners show as nobody.
		_ = idmap(tree, userns)
	}
	return nil
}

// alive returns ErrGone if the target has ended.
func (pr *Prepared) alive() error {
	if err := unix.PidfdSendSignal(int(pr.pidfd.Fd()), 0, nil, 0); err != nil {
		return fmt.Errorf("%w: %d", ErrGone, pr.target.PID)
	}
	return nil
}

// Close drops an overlay that was not attached. After Attach it does nothing.
func (pr *Prepared) Close() error {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	return pr.release()
}

func (pr *Prepared) release() error {
	for _, b := range pr.binds {
		b.tree.Close()
	}
	pr.binds = nil
	if pr.pidfd != nil {
		pr.pidfd.Close()
		pr.pidfd = nil
	}
	if pr.mnt != nil {
		err := pr.mnt.Close()
		pr.mnt = nil
		return err
	}
	return nil
}

// Attach replaces the root of a running container by the overlay of a stack:
// Prepare and Attach of what it prepared.
func (p *Pool) Attach(ctx context.Context, t Target, s Stack) (*Replaced, error) {
	pr, err := p.Prepare(ctx, t, s)
	if err != nil {
		return nil, err
	}
	defer pr.Close()
	return pr.Attach(ctx)
}

// Replaced is a root that was replaced and may have to be kept for a while.
type Replaced struct {
	Timings Timings
	old     *os.File
}

// Close lets go of the old root. The last reference to an overlay syncs the
// whole file system of its upper, however little of it is the upper's: call
// it in the background, never while a container is frozen.
func (r *Replaced) Close() error { return r.old.Close() }
