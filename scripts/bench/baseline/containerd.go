package baseline

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
)

const (
	namespace    = "baseline"
	snapshotter  = "overlayfs"
	startTimeout = 30 * time.Second
	stopTimeout  = 15 * time.Second
)

// Containerd is a running containerd.
type Containerd struct {
	dir    string
	cgroup string
	cmd    *exec.Cmd
	ended  chan struct{} // closed when it has ended, with exit set
	exit   error
	conn   *grpc.ClientConn

	snapshots  snapshotsapi.SnapshotsClient
	containers containersapi.ContainersClient
	tasks      tasksapi.TasksClient

	counter atomic.Int64
}

// config leaves out what would write outside of dir. %[1]s is dir.
const config = `version = 3
root = "%[1]s/root"
state = "%[1]s/state"
temp = "%[1]s/tmp"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt", "io.containerd.image-verifier.v1.bindir"]
[debug]
  level = "warn"
[grpc]
  address = "%[1]s/containerd.sock"
[ttrpc]
  address = "%[1]s/containerd.sock.ttrpc"
[plugins."io.containerd.shim.v1.manager"]
  socket_dir = "%[1]s/s"
`

// Start starts a containerd that keeps everything in dir, an absolute path of at
// most 40 bytes which is made. bin has containerd, its shim and runc, and the
// bundle of CRIU in bin/criu. The caller
// must Close it.
func Start(ctx context.Context, bin, dir string) (_ *Containerd, err error) {
	c := &Containerd{dir: dir, cgroup: "/cairn-baseline-" + filepath.Base(dir), ended: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close(ctx))
		}
	}()
	for _, d := range []string{"root", "state", "tmp", "s", "out", "path"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o711); err != nil {
			return nil, err
		}
	}
	path := filepath.Join(dir, "path")
	if err := bundled(filepath.Join(bin, "criu"), path); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(file, fmt.Appendf(nil, config, dir), 0o600); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "containerd.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	// It lives until Close, not until ctx ends.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), filepath.Join(bin, "containerd"), "--config", file)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = append(os.Environ(), "PATH="+path+":"+bin+":"+os.Getenv("PATH"))
	// A terminal's ^C is for this process alone: it has to clean up.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c.cmd = cmd
	go func() {
		c.exit = cmd.Wait()
		close(c.ended)
	}()
	c.conn, err = grpc.NewClient("unix://"+dir+"/containerd.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	c.snapshots = snapshotsapi.NewSnapshotsClient(c.conn)
	c.containers = containersapi.NewContainersClient(c.conn)
	c.tasks = tasksapi.NewTasksClient(c.conn)
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	return c, c.makeLease(ctx)
}

// ready waits until containerd serves.
func (c *Containerd) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	health := healthpb.NewHealthClient(c.conn)
	for {
		c.conn.ResetConnectBackoff() // it would wait for seconds after a first try in vain
		r, err := health.Check(ctx, &healthpb.HealthCheckRequest{})
		if err == nil && r.GetStatus() == healthpb.HealthCheckResponse_SERVING {
			return nil
		}
		select {
		case <-c.ended:
			return fmt.Errorf("containerd ended, see %s: %w", filepath.Join(c.dir, "containerd.log"), c.exit)
		case <-ctx.Done():
			return fmt.Errorf("containerd does not answer: %w", errors.Join(ctx.Err(), err))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// in names the namespace that a call is for.
func in(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace)
}

// name makes an unused name.
func (c *Containerd) name(prefix string) string {
	return fmt.Sprintf("%s%d", prefix, c.counter.Add(1))
}

// Close deletes every container, ends containerd and removes its directory.
func (c *Containerd) Close(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var errs []error
	if c.conn != nil {
		list, err := c.containers.List(in(ctx), &containersapi.ListContainersRequest{})
		errs = append(errs, err)
		for _, k := range list.GetContainers() {
			errs = append(errs, c.end(ctx, k.GetID()))
		}
		errs = append(errs, c.conn.Close())
	}
	if c.cmd != nil {
		_ = c.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-c.ended:
		case <-time.After(stopTimeout):
			_ = c.cmd.Process.Kill()
			<-c.ended
		}
	}
	removeCgroups(c.cgroup)
	// A task that could not be restored leaves its root mounted.
	roots, _ := filepath.Glob(filepath.Join(c.dir, "state", "*", namespace, "*", "rootfs")) // the pattern is well formed
	for _, dir := range roots {
		_ = syscall.Unmount(dir, syscall.MNT_DETACH) // mostly none is mounted
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// removeCgroups removes the empty groups that runc left, in every hierarchy.
func removeCgroups(name string) {
	v2 := filepath.Join("/sys/fs/cgroup", name)
	v1, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup/*", name)) // the pattern is well formed
	for _, dir := range append(v1, v2) {
		children, _ := filepath.Glob(filepath.Join(dir, "*/"))
		for _, d := range append(children, dir) {
			_ = syscall.Rmdir(d) // nothing to do about one that is in use or absent
		}
	}
}
