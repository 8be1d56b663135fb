package runtime

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"cairn/sandbox"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	shimName = "io.containerd.runc.v2"
	// ownerLabel is on every container that a Runtime makes, with its slots' directory.
	ownerLabel = "cairn/slots"
)

// start makes a blank container with the cairn-init of initDir, not yet acquired, and
// returns when its stem answers. When it fails nothing is left.
func (r *Runtime) start(ctx context.Context, n sandbox.Network, initDir string) (_ *Container, err error) {
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, r.o.Namespace), startTimeout)
	defer cancel()
	began := time.Now()
	name, err := newName()
	if err != nil {
		return nil, err
	}
	slot, err := r.takeSlot()
	if err != nil {
		return nil, err
	}
	c := &Container{
		r: r, slot: slot, io: r.slots.path(slot, ioName), done: make(chan struct{}),
		rec: record{Name: name, Network: n, Spec: r.mark, Init: initDir, CreatedAt: began.UTC()},
	}
	r.mu.Lock()
	r.byName[name], r.warm[name] = c, true
	r.mu.Unlock()
	defer func() {
		if err != nil {
			err = fmt.Errorf("container %s: %w", name, err)
			r.discard(context.WithoutCancel(ctx), c, "it did not start", err)
		}
	}()
	if err := r.slots.write(slot, c.rec); err != nil {
		return nil, err
	}
	if err := r.slots.makeIO(slot, c.IDBase()); err != nil {
		return nil, err
	}
	if err := r.create(ctx, c); err != nil {
		return nil, err
	}
	if n == sandbox.NetworkEgress {
		if err := r.o.Egress.Attach(ctx, name, procPath(c.rec.PID, "ns/net")); err != nil {
			return nil, fmt.Errorf("connect to the network: %w", err)
		}
	}
	if _, err := r.client.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: name}); err != nil {
		return nil, fmt.Errorf("start PID 1: %w", err)
	}
	if err := c.connect(); err != nil {
		return nil, err
	}
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	r.o.Logger.Debug("container started", "container", name, "slot", slot, "network", n, "took_ms", time.Since(began).Milliseconds())
	return c, nil
}

// create makes the container and its task in containerd, and takes hold of PID 1,
// which waits to be started.
func (r *Runtime) create(ctx context.Context, c *Container) error {
	spec, err := r.blank(c).spec()
	if err != nil {
		return err
	}
	specAny, err := typeurl.MarshalAny(spec)
	if err != nil {
		return err
	}
	opts, err := typeurl.MarshalAny(&options.Options{BinaryName: r.o.Runc, Root: r.o.RuncState})
	if err != nil {
		return err
	}
	shim := shimName
	if r.o.Runtime != "" {
		shim = r.o.Runtime
	}
	_, err = r.client.ContainerService().Create(ctx, containers.Container{
		ID:      c.rec.Name,
		Labels:  map[string]string{ownerLabel: r.o.Slots},
		Runtime: containers.RuntimeInfo{Name: shim, Options: opts},
		Spec:    specAny,
	})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	task, err := r.client.TaskService().Create(ctx, &tasks.CreateTaskRequest{ContainerID: c.rec.Name})
	if err != nil {
		return fmt.Errorf("create the task: %w", err)
	}
	proc, err := openProcess(int(task.Pid), 0)
	if err != nil {
		return err
	}
	c.proc, c.done = proc, proc.done
	c.rec.PID, c.rec.StartTime, c.rec.BootID = proc.pid, proc.start, r.boot
	return r.slots.write(c.slot, c.rec)
}

// connect opens what is needed to control the container: its group, its stem.
func (c *Container) connect() (err error) {
	if c.group, err = c.r.cg.Open(c.CgroupPath()); err != nil {
		return err
	}
	if c.guest, err = c.r.o.Guest(c.io, c.IDBase()); err != nil {
		return fmt.Errorf("reach the stem: %w", err)
	}
	return nil
}

// ready waits until the stem answers, or PID 1 has died.
func (c *Container) ready(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-c.done:
			cancel(errors.New("PID 1 has ended"))
		case <-stop:
		}
	}()
	if err := c.guest.Ready(ctx); err != nil {
		return fmt.Errorf("wait for the stem: %w", errors.Join(err, context.Cause(ctx)))
	}
	return nil
}

func (r *Runtime) blank(c *Container) blank {
	return blank{
		name: c.rec.Name, slot: c.slot, idBase: c.IDBase(), io: c.io, skeleton: r.o.Skeleton,
		initDir: c.rec.Init, cgroup: c.CgroupPath(), shm: r.o.ShmBytes,
	}
}

// fingerprint identifies what containers are made from: their specification and
// PID 1. A blank container of another one is not used.
func fingerprint(o Options) (string, error) {
	spec, err := blank{name: "-", skeleton: o.Skeleton, initDir: o.InitDir, shm: o.ShmBytes, idBase: o.IDBase, cgroup: o.Cgroup + "/-"}.spec()
	if err != nil {
		return "", err
	}
	fi, err := os.Stat(filepath.Join(o.InitDir, initName))
	if err != nil {
		return "", err
	}
	b, err := json.Marshal([]any{spec, fi.Size(), fi.ModTime()})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8]), nil
}

// unavailable makes the domain error of a failure to start.
func (r *Runtime) unavailable(what string, err error) error {
	var domain *sandbox.Error
	switch {
	case errors.As(err, &domain):
		return err
	case errors.Is(err, context.Canceled):
		return sandbox.Wrap(err, sandbox.CodeCancelled, "could not %s: the caller went away", what)
	case errors.Is(err, context.DeadlineExceeded):
		return sandbox.Wrap(err, sandbox.CodeTimeout, "could not %s in time", what)
	}
	for e := err; e != nil; e = errors.Unwrap(e) {
		if status.Code(e) == codes.Unavailable || errdefs.IsUnavailable(e) {
			return sandbox.Wrap(err, sandbox.CodeUnavailable, "could not %s: containerd is away", what)
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}
