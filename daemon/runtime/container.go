package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"cairn/daemon/cgroup"
	"cairn/sandbox"

	"golang.org/x/sys/unix"
)

// Container is one container; it implements sandbox.Container. Dead ones have
// no process and no group.
type Container struct {
	r    *Runtime
	slot int
	rec  record
	io   string

	proc  *process      // nil when it was found dead
	group *cgroup.Group // nil when it was found dead
	guest sandbox.Guest
	done  chan struct{} // closed when PID 1 has ended

	freezing sync.Mutex // serialises Freeze, Thaw and KillAll

	gone chan struct{} // closed when Destroy is through; guarded by Runtime.mu to set
}

var _ sandbox.Container = (*Container)(nil)

// Name is the container's name, never used for another one.
func (c *Container) Name() string { return c.rec.Name }

// PID is the host's process id of PID 1; 0 for a container that was found dead.
func (c *Container) PID() int { return c.rec.PID }

// IDBase is the host id of root inside.
func (c *Container) IDBase() uint32 { return c.r.idBase(c.slot) }

// IODir is the host's path of its /run/cairn.
func (c *Container) IODir() string { return c.io }

// Network is what the container is connected to.
func (c *Container) Network() sandbox.Network { return c.rec.Network }

// Program identifies the cairn-init that is its PID 1.
func (c *Container) Program() string { return programOf(c.rec.Init) }

// Guest is the client of its stem.
func (c *Container) Guest() sandbox.Guest { return c.guest }

// Done is closed when PID 1 has ended.
func (c *Container) Done() <-chan struct{} { return c.done }

// CgroupPath is the path of its control group in each hierarchy.
func (c *Container) CgroupPath() string { return c.r.cgroupPath(c.rec.Name) }

func (c *Container) alive() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// Freeze stops every process and returns when they stand still.
func (c *Container) Freeze(ctx context.Context) error {
	c.freezing.Lock()
	defer c.freezing.Unlock()
	return c.do("freeze", func(g *cgroup.Group) error { return g.Freeze(ctx) })
}

// Thaw lets every process run again.
func (c *Container) Thaw(ctx context.Context) error {
	c.freezing.Lock()
	defer c.freezing.Unlock()
	return c.do("thaw", func(g *cgroup.Group) error { return g.Thaw(ctx) })
}

// Processes lists the host's ids of all processes in it.
func (c *Container) Processes() (pids []int, err error) {
	err = c.do("processes", func(g *cgroup.Group) error {
		pids, err = g.Processes()
		return err
	})
	return pids, err
}

// KillAll ends every process but PID 1 and the stem, and returns when they are
// gone; the container is thawed then.
func (c *Container) KillAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	c.freezing.Lock()
	defer c.freezing.Unlock()
	return c.do("kill all", func(g *cgroup.Group) error { return g.Kill(ctx, c.spared) })
}

// EndTree ends every process but PID 1, the stem among them, and returns when they are
// gone and reaped, so that their pids are free; the container is thawed then. PID 1 starts
// another stem unless it was told not to.
func (c *Container) EndTree(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	c.freezing.Lock()
	defer c.freezing.Unlock()
	first := func([]int) []int { return []int{c.rec.PID} }
	err := c.do("end processes", func(g *cgroup.Group) error {
		err := g.KillFrozen(ctx, first)
		if errors.Is(err, cgroup.ErrNotFrozen) {
			err = g.Kill(ctx, first)
		}
		return err
	})
	if err != nil {
		return err
	}
	const pause = 200 * time.Microsecond
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		// A zombie is still a child.
		left, err := hasChildren(c.rec.PID)
		if err != nil {
			return c.fail("end processes", sandbox.CodeConflict, "the container has ended", err)
		}
		if !left {
			return nil
		}
		select {
		case <-ctx.Done():
			return c.fail("end processes", sandbox.CodeTimeout, "the sandbox's first process does not reap its children", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// hasChildren says whether a process has children, zombies included.
func hasChildren(pid int) (bool, error) {
	threads, err := os.ReadDir(procPath(pid, "task"))
	if err != nil {
		return false, err
	}
	for _, t := range threads {
		text, err := os.ReadFile(procPath(pid, "task/"+t.Name()+"/children"))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // the thread has ended
		}
		if err != nil || len(text) > 0 {
			return true, err
		}
	}
	return false, nil
}

// WakeInit makes PID 1 look for its stem at once.
func (c *Container) WakeInit() error {
	if c.proc == nil {
		return c.fail("wake", sandbox.CodeConflict, "the container has ended", os.ErrClosed)
	}
	return c.proc.signal(unix.SIGUSR1)
}

// spared are PID 1 and the stem: the one child of PID 1 that runs its program.
// Anything inside can start that program too. So when there are two, neither is the
// stem for certain and both go; PID 1 starts another one.
func (c *Container) spared(pids []int) []int {
	keep, stem := []int{c.rec.PID}, 0
	for _, p := range pids {
		if p == c.rec.PID {
			continue
		}
		if ppid, err := parentOf(p); err != nil || ppid != c.rec.PID || !sameExecutable(p, c.rec.PID) {
			continue
		}
		if stem != 0 {
			return keep
		}
		stem = p
	}
	if stem != 0 {
		keep = append(keep, stem)
	}
	return keep
}

// Limit sets the limits of the running container; disk is not its business.
func (c *Container) Limit(_ context.Context, r sandbox.Resources) error {
	return c.do("limit", func(g *cgroup.Group) error {
		return g.SetLimits(cgroup.Limits{CPUs: r.CPUs, MemoryBytes: r.MemoryBytes, PIDs: r.PIDs})
	})
}

// Usage says what the container uses now, disk left out.
func (c *Container) Usage() (u sandbox.Usage, err error) {
	err = c.do("usage", func(g *cgroup.Group) error {
		n, err := g.Usage()
		u = sandbox.Usage{CPUNanos: n.CPUNanos, MemoryBytes: n.MemoryBytes, PIDs: n.PIDs}
		return err
	})
	return u, err
}

// do runs fn on the group of a live container, and makes domain errors.
func (c *Container) do(op string, fn func(*cgroup.Group) error) error {
	err := cgroup.ErrGone
	if c.group != nil {
		err = fn(c.group)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cgroup.ErrGone), errors.Is(err, os.ErrClosed):
		return c.fail(op, sandbox.CodeConflict, "the container has ended", err)
	case errors.Is(err, cgroup.ErrNotFrozen):
		return c.fail(op, sandbox.CodeTimeout, "a process of the sandbox cannot be stopped now", err)
	case errors.Is(err, cgroup.ErrNoController):
		return c.fail(op, sandbox.CodeUnsupported, "this host cannot enforce that limit", err)
	case errors.Is(err, unix.EBUSY):
		return c.fail(op, sandbox.CodeConflict, "the sandbox uses more memory than that already", err)
	case errors.Is(err, unix.EINVAL):
		return c.fail(op, sandbox.CodeInvalid, "the host does not accept that limit", err)
	case errors.Is(err, context.DeadlineExceeded):
		return c.fail(op, sandbox.CodeTimeout, "it took too long", err)
	case errors.Is(err, context.Canceled):
		return c.fail(op, sandbox.CodeCancelled, "the caller went away", err)
	}
	return fmt.Errorf("%s container %s: %w", op, c.rec.Name, err)
}

func (c *Container) fail(op string, code sandbox.Code, message string, err error) error {
	return &sandbox.Error{Code: code, Op: op, Message: message, Err: fmt.Errorf("container %s: %w", c.rec.Name, err)}
}

// generationFile is where programs inside read how often they were restored.
const generationFile = "generation"

// SetGeneration puts n, in decimal and with a newline, into /run/cairn/generation.
func (c *Container) SetGeneration(n int64) error {
	root, err := os.OpenRoot(c.io)
	if err != nil {
		return fmt.Errorf("write the generation of %s: %w", c.rec.Name, err)
	}
	defer root.Close()
	// The sandbox owns the directory: make a new file, whatever is there, and put
	// it in place by name.
	const tmp = ".generation"
	err = errors.Join(root.RemoveAll(tmp), func() error {
		f, err := root.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		_, err = io.WriteString(f, strconv.FormatInt(n, 10)+"\n")
		return errors.Join(err, f.Chmod(0o644), f.Close())
	}())
	if err != nil {
		return fmt.Errorf("write the generation of %s: %w", c.rec.Name, err)
	}
	err = root.Rename(tmp, generationFile)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, os.ErrExist) {
		if err = root.RemoveAll(generationFile); err == nil {
			err = root.Rename(tmp, generationFile)
		}
	}
	if err != nil {
		return fmt.Errorf("write the generation of %s: %w", c.rec.Name, err)
	}
	return nil
}

// close gives up what this process holds of the container.
func (c *Container) close() {
	if c.proc != nil {
		c.proc.close()
	}
	if c.group != nil {
		_ = c.group.Close()
	}
	if g, ok := c.guest.(io.Closer); ok {
		_ = g.Close()
	}
}
