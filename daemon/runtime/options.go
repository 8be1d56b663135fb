package runtime

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"cairn/sandbox"
)

// IDs is how many user and group ids a sandbox has.
const IDs = 1 << 16

// Egress connects network namespaces to the outside.
type Egress interface {
	// Attach gives the network namespace at path an interface, known by id.
	Attach(ctx context.Context, id, path string) error
	// Detach gives up what id holds; nil when that is nothing.
	Detach(ctx context.Context, id string) error
	// Sweep detaches every id that keep does not want.
	Sweep(ctx context.Context, keep func(id string) bool) error
}

// Warm is how many blank containers of each network the pool is to hold.
type Warm struct {
	None   int
	Egress int
}

// Options configure a Runtime. All paths are absolute.
type Options struct {
	Address   string // containerd's socket
	Namespace string // containerd's namespace; "" means "cairn"
	Runtime   string // path of containerd-shim-runc-v2; "" lets containerd find it
	Runc      string // path of runc; "" lets the shim find it
	RuncState string // directory of runc's own state

	Skeleton string // shared root of blank containers
	InitDir  string // directory with cairn-init, seen at /.cairn
	// FindInit gives the directory with a former cairn-init, by Container.Program. nil: there
	// are no former ones.
	FindInit func(program string) (dir string, found bool)
	Slots    string // directory of the slots

	IDBase   uint32 // first host id of slot 0
	MaxSlots int    // 0: as many as there are ids
	Cgroup   string // parent group of all containers, e.g. "/cairn/1a2b"; no other daemon's
	ShmBytes int64  // size bound of /dev/shm; 0: 256 MiB

	Warm        Warm
	Parallel    int           // cold starts at once; 0: 4
	RefillDelay time.Duration // how long the pool lets callers have the machine before it refills; 0: 50 ms

	Egress Egress // nil: no network but none
	// Guest makes the client of the stem that listens in ioDir, a directory of the
	// user idBase. When it is an io.Closer it is closed with the container.
	Guest func(ioDir string, idBase uint32) (sandbox.Guest, error)

	Logger *slog.Logger
}

// Bounds that hold whatever the caller's context says.
const (
	startTimeout   = 60 * time.Second
	destroyTimeout = 60 * time.Second
	killTimeout    = 15 * time.Second
	refillParallel = 2
)

func (o *Options) complete() error {
	if o.Namespace == "" {
		o.Namespace = "cairn"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.ShmBytes == 0 {
		o.ShmBytes = 256 << 20
	}
	if o.Parallel <= 0 {
		o.Parallel = 4
	}
	if o.RefillDelay <= 0 {
		o.RefillDelay = 50 * time.Millisecond
	}
	if o.IDBase < IDs {
		return fmt.Errorf("uid base %d: ids below %d belong to the host", o.IDBase, IDs)
	}
	most := int((1<<32 - 1 - int64(o.IDBase)) / IDs)
	if o.MaxSlots <= 0 || o.MaxSlots > most {
		o.MaxSlots = most
	}
	if !filepath.IsAbs(o.Cgroup) || filepath.Clean(o.Cgroup) == "/" {
		return fmt.Errorf("cgroup parent %q must be an absolute path below the root", o.Cgroup)
	}
	if o.Guest == nil {
		return fmt.Errorf("no way to reach the stem was given")
	}
	if o.Egress == nil && o.Warm.Egress > 0 {
		return fmt.Errorf("warm containers with egress need a network")
	}
	for _, p := range []string{o.Skeleton, o.InitDir, o.Slots} {
		if !filepath.IsAbs(p) {
			return fmt.Errorf("path %q must be absolute", p)
		}
	}
	if err := os.MkdirAll(o.Slots, 0o711); err != nil {
		return err
	}
	for _, p := range []string{o.Skeleton, o.InitDir, o.Slots} {
		if err := passable(p); err != nil {
			return err
		}
	}
	for _, m := range mountPoints() {
		if fi, err := os.Stat(filepath.Join(o.Skeleton, m)); err != nil || !fi.IsDir() {
			return fmt.Errorf("the skeleton %s lacks the directory %s", o.Skeleton, m)
		}
	}
	fi, err := os.Stat(filepath.Join(o.InitDir, initName))
	if err != nil {
		return fmt.Errorf("no PID 1 for sandboxes: %w", err)
	}
	if fi.Mode().Perm()&0o005 != 0o005 {
		return fmt.Errorf("%s must be readable and executable by everyone: sandboxes run it as users of their own", filepath.Join(o.InitDir, initName))
	}
	return nil
}

// passable checks that root of a sandbox, which is nobody in particular on the
// host, may walk through dir and all above it: runc resolves these paths as that user.
func passable(dir string) error {
	for p := filepath.Clean(dir); ; p = filepath.Dir(p) {
		fi, err := os.Stat(p)
		if err != nil {
			return err
		}
		if fi.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("%s has mode %04o: sandboxes must be able to pass it on the way to %s (chmod o+x %s)", p, fi.Mode().Perm(), dir, p)
		}
		if p == "/" {
			return nil
		}
	}
}
