package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"cairn/daemon/cgroup"
	"cairn/sandbox"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Destroy ends everything in the container and removes every trace of it. It
// does so to the end even when ctx does not last; nil when there is no such container.
func (r *Runtime) Destroy(ctx context.Context, name string) error {
	r.mu.Lock()
	c := r.byName[name]
	r.mu.Unlock()
	if c == nil {
		return nil
	}
	if err := r.destroy(context.WithoutCancel(ctx), c); err != nil {
		return r.unavailable("remove the container", err)
	}
	return nil
}

// discard destroys a container that nobody has, and logs why.
func (r *Runtime) discard(ctx context.Context, c *Container, why string, cause error) {
	level := r.o.Logger.Warn
	if errors.Is(cause, context.Canceled) || cause == nil {
		level = r.o.Logger.Info
	}
	level("removing a container", "container", c.rec.Name, "why", why, "error", cause)
	if err := r.destroy(ctx, c); err != nil {
		r.o.Logger.Error("a container could not be removed; the next start will try again", "container", c.rec.Name, "error", err)
	}
}

// destroy removes c; callers that come while another one is at it wait for that.
func (r *Runtime) destroy(ctx context.Context, c *Container) error {
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, r.o.Namespace), destroyTimeout)
	defer cancel()
	for {
		r.mu.Lock()
		if r.byName[c.rec.Name] != c {
			r.mu.Unlock()
			return nil
		}
		other := c.gone
		if other == nil {
			c.gone = make(chan struct{})
			r.mu.Unlock()
			break
		}
		r.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	r.pool.drop(c)
	err := r.remove(ctx, c)
	r.mu.Lock()
	close(c.gone)
	if err != nil {
		c.gone = nil // may be tried again
		r.mu.Unlock()
		return fmt.Errorf("container %s: %w", c.rec.Name, err)
	}
	delete(r.byName, c.rec.Name)
	delete(r.warm, c.rec.Name)
	delete(r.held, c.slot)
	r.mu.Unlock()
	c.close()
	r.pool.nudge()
	return nil
}

// remove removes everything of c; the record, by which all of it is found, goes last.
func (r *Runtime) remove(ctx context.Context, c *Container) error {
	if err := r.killGroup(ctx, c.CgroupPath()); err != nil {
		return err
	}
	if c.proc != nil {
		select {
		case <-c.done:
		case <-ctx.Done():
			return fmt.Errorf("PID 1 does not end: %w", context.Cause(ctx))
		}
	}
	if err := r.forget(ctx, c.rec.Name); err != nil {
		return err
	}
	if c.rec.Network == sandbox.NetworkEgress && r.o.Egress != nil {
		if err := r.o.Egress.Detach(ctx, c.rec.Name); err != nil {
			return fmt.Errorf("disconnect from the network: %w", err)
		}
	}
	if err := r.removeGroup(ctx, c.CgroupPath()); err != nil {
		return err
	}
	return r.slots.release(c.slot)
}

// forget removes the task and the container of that name from containerd.
func (r *Runtime) forget(ctx context.Context, name string) error {
	err := r.insist(ctx, func() error {
		_, err := r.client.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: name})
		if status.Code(err) == codes.FailedPrecondition { // it runs, or its end is not yet known there
			_, _ = r.client.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: name, Signal: 9, All: true})
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("delete the task: %w", err)
	}
	if err := r.insist(ctx, func() error { return r.client.ContainerService().Delete(ctx, name) }); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	if r.o.RuncState != "" {
		return os.RemoveAll(filepath.Join(r.o.RuncState, r.o.Namespace, name))
	}
	return nil
}

// insist calls fn until it succeeds, or says that there is nothing, or ctx ends.
// containerd may be starting again just now.
func (r *Runtime) insist(ctx context.Context, fn func() error) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		err := fn()
		if err == nil || errdefs.IsNotFound(err) || status.Code(err) == codes.NotFound {
			return nil
		}
		again := errdefs.IsUnavailable(err) || errdefs.IsFailedPrecondition(err)
		switch status.Code(err) {
		case codes.Unavailable, codes.FailedPrecondition, codes.Unknown, codes.Aborted:
			again = true
		default:
		}
		if !again {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// killGroup ends every process in the group at path.
func (r *Runtime) killGroup(ctx context.Context, path string) error {
	g, err := r.cg.Open(path)
	if errors.Is(err, cgroup.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer g.Close()
	return g.Kill(ctx, nil)
}

// removeGroup removes the group at path, where runc has not done so.
func (r *Runtime) removeGroup(ctx context.Context, path string) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := r.cg.Remove(path)
		if err == nil {
			return nil
		}
		if e := r.killGroup(ctx, path); e != nil {
			return errors.Join(err, e)
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}
