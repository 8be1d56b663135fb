package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"cairn/sandbox"

	"github.com/containerd/containerd/v2/pkg/namespaces"
)

// adoptTimeout is how long the stem of a blank container may take to answer a new daemon.
const adoptTimeout = 10 * time.Second

// recover finds what a former daemon left. Acquired containers are kept, dead
// or alive; blank ones go back to the pool when they are still good; the rest is
// removed in the background.
func (r *Runtime) recover(ctx context.Context) error {
	taken, err := r.slots.taken()
	if err != nil {
		return err
	}
	slices.Sort(taken)
	var doomed, good []*Container
	for _, slot := range taken {
		rec, acquired, ok, err := r.slots.read(slot)
		if err != nil {
			return err
		}
		if !ok { // taken, and the daemon killed before it wrote a record: nothing else exists
			if err := r.slots.release(slot); err != nil {
				return err
			}
			continue
		}
		c := r.reopen(slot, rec)
		r.held[slot] = true
		r.byName[rec.Name] = c
		if acquired {
			continue
		}
		r.warm[rec.Name] = true
		if !c.alive() || rec.Spec != r.mark || !r.pool.expect(rec.Network) {
			doomed = append(doomed, c)
			continue
		}
		good = append(good, c)
	}
	strays, err := r.strays(ctx)
	if err != nil {
		return err
	}
	if r.o.Egress != nil {
		keep := make(map[string]bool, len(r.byName))
		for name := range r.byName {
			keep[name] = true
		}
		if err := r.o.Egress.Sweep(ctx, func(id string) bool { return keep[id] }); err != nil {
			return fmt.Errorf("sweep the network: %w", err)
		}
	}
	// From here on others change what this function has filled.
	for _, c := range good {
		r.background(func(ctx context.Context) { r.adopt(ctx, c) })
	}
	r.background(func(ctx context.Context) {
		for _, c := range doomed {
			r.discard(ctx, c, "a former daemon left it", nil)
		}
		for _, name := range strays {
			r.removeStray(ctx, name)
		}
	})
	return nil
}

// reopen takes hold of a recorded container. One that is dead has no process.
func (r *Runtime) reopen(slot int, rec record) *Container {
	c := &Container{r: r, slot: slot, rec: rec, io: r.slots.path(slot, ioName), done: make(chan struct{})}
	err := errNotRunning
	if rec.PID != 0 && rec.BootID == r.boot {
		if c.proc, err = openProcess(rec.PID, rec.StartTime); err == nil {
			c.done = c.proc.done
			err = c.connect()
		}
	}
	if err != nil && c.proc != nil {
		// It runs, and cannot be controlled: somebody else removed its group.
		r.o.Logger.Warn("a container cannot be taken back", "container", rec.Name, "error", err)
		c.proc.close()
		c.proc = nil
	}
	if c.proc == nil {
		c.done = make(chan struct{})
		close(c.done)
		c.rec.PID = 0
		// What can still be asked of a dead one: its output.
		if c.guest == nil {
			if c.guest, err = r.o.Guest(c.io, c.IDBase()); err != nil && !errors.Is(err, os.ErrNotExist) {
				r.o.Logger.Warn("the files of a dead container cannot be read", "container", rec.Name, "error", err)
			}
		}
	}
	return c
}

// adopt puts a blank container of a former daemon into the pool.
func (r *Runtime) adopt(ctx context.Context, c *Container) {
	ready, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	if err := c.ready(ready); err != nil {
		r.pool.missed(c.rec.Network)
		r.discard(ctx, c, "it does not answer", err)
		return
	}
	r.pool.put(c)
}

// strays are names that containerd or the control groups know and no record
// does. There are none unless somebody removed a slot's directory.
func (r *Runtime) strays(ctx context.Context) ([]string, error) {
	ctx = namespaces.WithNamespace(ctx, r.o.Namespace)
	list, err := r.client.ContainerService().List(ctx, fmt.Sprintf("labels.%q==%q", ownerLabel, r.o.Slots))
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	names, err := r.cg.Children(r.o.Cgroup)
	if err != nil {
		return nil, err
	}
	for _, c := range list {
		names = append(names, c.ID)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(n string) bool { return n == primeGroup || r.byName[n] != nil }), nil
}

func (r *Runtime) removeStray(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, r.o.Namespace), destroyTimeout)
	defer cancel()
	r.o.Logger.Warn("removing a container that nobody knows", "container", name)
	path := r.cgroupPath(name)
	if err := errors.Join(r.killGroup(ctx, path), r.forget(ctx, name), r.removeGroup(ctx, path)); err != nil {
		r.o.Logger.Error("a container that nobody knows could not be removed", "container", name, "error", err)
	}
}

// Warm counts the blank containers in the pool.
func (r *Runtime) Warm(n sandbox.Network) int { return r.pool.count(n) }
