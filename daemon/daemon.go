package daemon

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"cairn/criu"
	"cairn/daemon/config"
	"cairn/daemon/network"
	"cairn/daemon/runtime"
	"cairn/daemon/store"
	"cairn/daemon/supervise"
	"cairn/daemon/webhook"
	"cairn/overlay"
	"cairn/sandbox"
	"cairn/sandbox/failpoint"
	"cairn/sandbox/stem"
)

// namespace is Cairn's in containerd.
const namespace = "cairn"

// Daemon is everything that runs for one state directory.
type Daemon struct {
	cfg     config.Config
	log     *slog.Logger
	Service *sandbox.Service

	pool       *overlay.Pool
	store      *store.Store
	containers *runtime.Runtime
	criu       *criu.CRIU
	images     images
	egress     *network.Egress // nil: this host has none
	containerd string          // address

	closers []closer // in the order of opening
}

type closer struct {
	name string
	fn   func(context.Context) error
}

// Options are what a configuration file does not say.
type Options struct {
	Config     config.Config
	Logger     *slog.Logger
	Failpoints *failpoint.Points
}

func (d *Daemon) onClose(name string, fn func(context.Context) error) {
	d.closers = append(d.closers, closer{name, fn})
}

// Open opens the state directory and brings everything in it up, sandboxes of a
// former daemon included. The caller must Close it, whatever happened.
func Open(ctx context.Context, o Options) (_ *Daemon, err error) {
	d := &Daemon{cfg: o.Config, log: o.Logger}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close(context.WithoutCancel(ctx)))
		}
	}()
	c := d.cfg
	for _, dir := range []string{c.StateDir, c.RunDir, c.Pool.Dir} {
		// Root inside a sandbox must pass through to its own files, and sees nothing
		// else: the directories within have their own modes.
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, err
		}
	}
	lock, err := lockFile(filepath.Join(c.StateDir, "lock"))
	if err != nil {
		return nil, err
	}
	d.onClose("lock", closing(lock))
	restarted, remember, err := hostRestarted(c.StateDir)
	if err != nil {
		return nil, err
	}
	if d.store, err = store.Open(ctx, filepath.Join(c.StateDir, "cairn.db"), store.Options{Logger: d.log}); err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	d.onClose("metadata", closing(d.store))
	if d.pool, err = overlay.Open(c.Pool.Dir, overlay.Options{Logger: d.log}); err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	d.onClose("pool", closing(d.pool))
	if err := d.openContainerd(ctx); err != nil {
		return nil, fmt.Errorf("containerd: %w", err)
	}
	if err := d.openContainers(ctx); err != nil {
		return nil, fmt.Errorf("containers: %w", err)
	}
	newID := newIDs()
	hooks, err := webhook.New(c.Hooks.Allow)
	if err != nil {
		return nil, fmt.Errorf("hooks.allow: %w", err)
	}
	d.Service = d.newService(newID, hooks, o.Failpoints)
	d.onClose("service", d.Service.Close)
	if err := d.Service.Reconcile(ctx, sandbox.ReconcileOptions{HostRestarted: restarted}); err != nil {
		return nil, fmt.Errorf("reconcile: %w", err)
	}
	if err := d.openImages(newID); err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	return d, remember()
}

// closing is the end of what needs no context for it.
func closing(c io.Closer) func(context.Context) error {
	return func(context.Context) error { return c.Close() }
}

// Close ends everything in the reverse order of opening. Sandboxes run on.
func (d *Daemon) Close(ctx context.Context) error {
	var errs []error
	for _, c := range slices.Backward(d.closers) {
		if err := c.fn(ctx); err != nil {
			errs = append(errs, fmt.Errorf("close %s: %w", c.name, err))
		}
	}
	d.closers = nil
	return errors.Join(errs...)
}

func (d *Daemon) openContainerd(ctx context.Context) error {
	if a := d.cfg.Containerd.Address; a != "" {
		d.containerd = a
		return supervise.Ready(ctx, a)
	}
	bin, err := binary(d.cfg.Containerd.Binaries, "containerd")
	if err != nil {
		return err
	}
	c, err := supervise.Start(ctx, supervise.Options{
		Dir: filepath.Join(d.cfg.StateDir, "containerd"), Socket: filepath.Join(d.cfg.RunDir, "containerd.sock"),
		Binary: bin, Logger: d.log,
	})
	if err != nil {
		return err
	}
	d.containerd = c.Address()
	d.onClose("containerd", c.Stop)
	return nil
}

func (d *Daemon) openContainers(ctx context.Context) error {
	c := d.cfg
	find := func(name string) string {
		p, err := binary(c.Containerd.Binaries, name)
		if err != nil {
			return "" // an existing containerd has its own
		}
		return p
	}
	initBinary, err := binary(c.Containerd.Binaries, "cairn-init")
	if err != nil {
		return err
	}
	bundle, err := criuBundle(c.Containerd.Binaries)
	if err != nil {
		d.log.Warn("processes cannot be checkpointed", "err", err)
	}
	initDir, err := installInside(c.StateDir, initBinary, bundle)
	if err != nil {
		return err
	}
	if err := d.openDumps(ctx, initDir); err != nil {
		return fmt.Errorf("criu: %w", err)
	}
	watcher, err := stem.NewWatcher()
	if err != nil {
		return err
	}
	d.onClose("watcher", closing(watcher))
	egress, err := d.openNetwork()
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	d.containers, err = runtime.New(ctx, runtime.Options{
		Address: d.containerd, Namespace: namespace, Runtime: find("containerd-shim-runc-v2"), Runc: find("runc"),
		RuncState: filepath.Join(c.RunDir, "runc"), Skeleton: d.pool.Skeleton(), InitDir: initDir,
		FindInit: func(program string) (string, bool) { return findInit(c.StateDir, program) },
		Slots:    filepath.Join(c.Pool.Dir, "s"), IDBase: c.IDBase, Cgroup: "/cairn/" + instance(c.StateDir),
		Warm: runtime.Warm{None: c.Warm.None, Egress: c.Warm.Egress}, Egress: egress, Logger: d.log,
		Guest: func(ioDir string, idBase uint32) (sandbox.Guest, error) {
			client, err := stem.Open(ioDir, stem.Options{Watcher: watcher})
			if err != nil {
				return nil, err
			}
			return &guest{c: client, stdin: c.Limits.StdinBytes}, nil
		},
	})
	if err != nil {
		return err
	}
	d.onClose("containers", func(ctx context.Context) error {
		d.containers.Drain(ctx)
		return d.containers.Close(ctx)
	})
	return nil
}

// instance names this state directory where names are the host's: control groups,
// bridges.
func instance(stateDir string) string {
	sum := sha256.Sum256([]byte(stateDir))
	const enough = 4
	return hex.EncodeToString(sum[:enough])
}

func (d *Daemon) newService(newID func(string) string, hooks sandbox.Webhooks, points *failpoint.Points) *sandbox.Service {
	c := d.cfg
	return sandbox.New(sandbox.Options{
		Store: d.store, Layers: layers{d.pool}, Containers: d.containers, Log: d.log,
		Dumps: dumps{c: d.criu, pool: d.pool, log: d.log}, Webhooks: hooks,
		Now: func() time.Time { return time.Now().UTC() }, NewID: newID,
		MaxDepth: c.Pool.MaxDepth, LockWait: c.Limits.LockWait, MountSources: c.Mounts.Allow,
		ResolvConf: d.resolvConf, MaxForks: c.Limits.Forks, MaxSandboxes: c.Limits.Sandboxes,
		DefaultDisk: c.Limits.DiskBytes, OutputLimit: c.Limits.OutputBytes, StdinLimit: c.Limits.StdinBytes,
		Versions:   map[string]string{"cairn": Version(), "kernel": kernelRelease()},
		Failpoints: points, DurableWorkers: 2, CompressAfter: c.Pages.CompressAfter,
	})
}

// newIDs gives a function that makes prefixed ULIDs, increasing in time and
// within one millisecond.
func newIDs() func(prefix string) string {
	var mu sync.Mutex
	entropy := ulid.Monotonic(rand.Reader, 0)
	return func(prefix string) string {
		mu.Lock()
		defer mu.Unlock()
		return prefix + "_" + ulid.MustNew(ulid.Timestamp(time.Now()), entropy).String()
	}
}

// Version is the version of Cairn that this program was built as.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
