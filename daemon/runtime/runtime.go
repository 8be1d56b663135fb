package runtime

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"cairn/daemon/cgroup"
	"cairn/sandbox"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/oklog/ulid/v2"
)

// Runtime makes, keeps and finds containers. It implements sandbox.Containers.
type Runtime struct {
	o      Options
	client *containerd.Client
	cg     *cgroup.Hierarchy
	slots  slotDirs
	mark   string // fingerprint of what containers are made from
	boot   string

	run   context.Context // ends with Close
	stop  context.CancelCauseFunc
	tasks sync.WaitGroup
	prime func() error  // undoes what makes freezing fast
	cold  chan struct{} // as many tokens as may start at once
	pool  *pool

	mu     sync.Mutex
	closed bool
	byName map[string]*Container // every container that is not wholly destroyed
	warm   map[string]bool       // names of those that are not acquired
	held   map[int]bool          // slots in use
	next   int                   // where the search for a free slot begins
}

var _ sandbox.Containers = (*Runtime)(nil)

// primeGroup is the group, beside those of containers, that makes freezing fast.
const primeGroup = ".prime"

var errClosed = errors.New("the runtime is closed")

// New connects to containerd, takes back the containers that a former daemon
// left, and begins to remove what cannot be used any more and to fill the pool.
func New(ctx context.Context, o Options) (*Runtime, error) {
	if err := o.complete(); err != nil {
		return nil, fmt.Errorf("runtime: %w", err)
	}
	cg, err := cgroup.Detect()
	if err != nil {
		return nil, fmt.Errorf("runtime: %w", err)
	}
	boot, err := bootID()
	if err != nil {
		return nil, fmt.Errorf("runtime: %w", err)
	}
	mark, err := fingerprint(o)
	if err != nil {
		return nil, fmt.Errorf("runtime: %w", err)
	}
	client, err := containerd.New(o.Address, containerd.WithDefaultNamespace(o.Namespace), containerd.WithTimeout(30*time.Second))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %s: %w", o.Address, err)
	}
	run, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	r := &Runtime{
		o: o, client: client, cg: cg, slots: slotDirs(o.Slots), mark: mark, boot: boot,
		run: run, stop: stop, cold: make(chan struct{}, o.Parallel),
		byName: map[string]*Container{}, warm: map[string]bool{}, held: map[int]bool{},
	}
	r.pool = newPool(r)
	if r.prime, err = cg.Prime(o.Cgroup + "/" + primeGroup); err != nil {
		o.Logger.Warn("freezing will be slow", "error", err)
		r.prime = func() error { return nil }
	}
	if err := r.recover(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("take back containers: %w", err), r.Close(context.WithoutCancel(ctx)))
	}
	r.pool.begin()
	return r, nil
}

// Close stops the work in the background and lets go of containerd. Containers
// run on, those of the pool included. A second call does nothing.
func (r *Runtime) Close(ctx context.Context) error {
	r.mu.Lock()
	again := r.closed
	r.closed = true
	r.mu.Unlock()
	if again {
		return nil
	}
	r.pool.end()
	r.stop(errClosed)
	done := make(chan struct{})
	go func() { r.tasks.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("close the runtime: %w", context.Cause(ctx))
	}
	r.mu.Lock()
	all := r.byName
	r.byName = map[string]*Container{}
	r.mu.Unlock()
	for _, c := range all {
		c.close()
	}
	err := r.prime()
	if len(all) == 0 {
		err = errors.Join(err, r.cg.Remove(r.o.Cgroup))
	}
	return errors.Join(err, r.client.Close())
}

// Drain ends the pool: nothing is kept warm any more, and what was is removed.
// Containers that were acquired run on.
func (r *Runtime) Drain(ctx context.Context) {
	blank := r.pool.end()
	var wg sync.WaitGroup
	for _, c := range blank {
		wg.Go(func() { r.discard(ctx, c, "the pool is drained", nil) })
	}
	wg.Wait()
}

// Acquire takes a container from the pool, or starts one.
func (r *Runtime) Acquire(ctx context.Context, n sandbox.Network) (sandbox.Container, bool, error) {
	switch {
	case n != sandbox.NetworkNone && n != sandbox.NetworkEgress:
		return nil, false, sandbox.Invalid("network", "%q is not a network: use none or egress", n)
	case n == sandbox.NetworkEgress && r.o.Egress == nil:
		return nil, false, sandbox.Errorf(sandbox.CodeUnsupported, "this daemon has no egress network")
	}
	if c := r.pool.take(n); c != nil {
		return c, true, r.acquired(c)
	}
	select {
	case r.cold <- struct{}{}:
		defer func() { <-r.cold }()
	case <-ctx.Done():
		return nil, false, sandbox.Wrap(context.Cause(ctx), sandbox.CodeCancelled, "gave up waiting for a container")
	case <-r.run.Done():
		return nil, false, sandbox.Wrap(errClosed, sandbox.CodeUnavailable, "the daemon is stopping")
	}
	if c := r.pool.take(n); c != nil { // filled while this call waited
		return c, true, r.acquired(c)
	}
	c, err := r.start(ctx, n, r.o.InitDir)
	if err != nil {
		return nil, false, r.unavailable("start a container", err)
	}
	return c, false, r.acquired(c)
}

// AcquireLike is Acquire for a container with a given cairn-init. Only the present one is
// in the warm pool.
func (r *Runtime) AcquireLike(ctx context.Context, n sandbox.Network, program string) (sandbox.Container, error) {
	if program == programOf(r.o.InitDir) {
		c, _, err := r.Acquire(ctx, n)
		return c, err
	}
	dir, found := "", false
	if r.o.FindInit != nil {
		dir, found = r.o.FindInit(program)
	}
	if !found {
		return nil, sandbox.Errorf(sandbox.CodeUnsupported, "the processes were started by a cairn-init that is not kept here any more (%s)", program)
	}
	c, err := r.start(ctx, n, dir)
	if err != nil {
		return nil, r.unavailable("start a container", err)
	}
	return c, r.acquired(c)
}

// programOf identifies the cairn-init in a directory of Options: the name of the directory,
// as far as a hyphen.
func programOf(dir string) string {
	program, _, _ := strings.Cut(filepath.Base(dir), "-")
	return program
}

// acquired records that c is a sandbox's now.
func (r *Runtime) acquired(c *Container) error {
	if err := r.slots.markAcquired(c.slot); err != nil {
		r.background(func(ctx context.Context) { r.discard(ctx, c, "it could not be marked", err) })
		return fmt.Errorf("acquire container %s: %w", c.rec.Name, err)
	}
	r.mu.Lock()
	delete(r.warm, c.rec.Name)
	r.mu.Unlock()
	return nil
}

// Open finds a container that was acquired.
func (r *Runtime) Open(_ context.Context, name string) (sandbox.Container, error) {
	r.mu.Lock()
	c, ok := r.byName[name]
	ok = ok && !r.warm[name] && c.gone == nil
	r.mu.Unlock()
	if !ok || !c.alive() {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "container %q is gone", name)
	}
	return c, nil
}

// Names lists the acquired containers, oldest first.
func (r *Runtime) Names(context.Context) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for name := range r.byName {
		if !r.warm[name] {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// Count says how many containers there are, those of the pool and those that
// are being started or destroyed included.
func (r *Runtime) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.held)
}

// newName makes the name of a container. Names sort by age.
func newName() (string, error) {
	id, err := ulid.New(ulid.Now(), rand.Reader)
	if err != nil {
		return "", fmt.Errorf("name a container: %w", err)
	}
	return "ctr-" + strings.ToLower(id.String()), nil
}

func (r *Runtime) idBase(slot int) uint32 { return r.o.IDBase + uint32(slot)*IDs }

func (r *Runtime) cgroupPath(name string) string { return r.o.Cgroup + "/" + name }

// background runs fn beside the callers, until Close. The context lives for a
// while longer than Close, so that what has begun is finished.
func (r *Runtime) background(fn func(context.Context)) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return
	}
	r.tasks.Add(1)
	r.mu.Unlock()
	go func() {
		defer r.tasks.Done()
		fn(context.WithoutCancel(r.run))
	}()
}

// takeSlot takes a free slot and its directory.
func (r *Runtime) takeSlot() (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for range r.o.MaxSlots {
		slot := r.next
		r.next = (r.next + 1) % r.o.MaxSlots
		if r.held[slot] {
			continue
		}
		ok, err := r.slots.take(slot)
		if err != nil {
			return 0, fmt.Errorf("take slot %d: %w", slot, err)
		}
		if ok {
			r.held[slot] = true
			return slot, nil
		}
	}
	return 0, sandbox.Errorf(sandbox.CodeExhausted, "all %d user id ranges are in use", r.o.MaxSlots)
}
