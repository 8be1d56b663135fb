package baseline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// Container is a running container.
type Container struct {
	c    *Containerd
	name string // also of its snapshot
	PID  uint32 // of PID 1, on the host
}

// Create prepares a snapshot from a committed one, makes a container of it and
// starts it: what `ctr run` does. Without args it sleeps.
func (c *Containerd) Create(ctx context.Context, parent string, args ...string) (*Container, error) {
	return c.create(ctx, parent, nil, args...)
}

func (c *Containerd) create(ctx context.Context, parent string, from *Images, args ...string) (*Container, error) {
	k := &Container{c: c, name: c.name("c")}
	_, err := c.snapshots.Prepare(in(ctx), &snapshotsapi.PrepareSnapshotRequest{Snapshotter: snapshotter, Key: k.name, Parent: parent, Labels: root()})
	if err != nil {
		return nil, fmt.Errorf("prepare a snapshot: %w", err)
	}
	if len(args) == 0 {
		args = []string{"sleep", "infinity"}
	}
	spec, err := message("Spec", c.spec(k.name, args))
	if err != nil {
		return nil, err
	}
	_, err = c.containers.Create(in(ctx), &containersapi.CreateContainerRequest{Container: &containersapi.Container{
		ID: k.name, Runtime: &containersapi.Container_Runtime{Name: "io.containerd.runc.v2"}, Spec: spec, Snapshotter: snapshotter, SnapshotKey: k.name,
	}})
	if err != nil {
		return nil, fmt.Errorf("create a container: %w", err)
	}
	return k, k.start(ctx, from)
}

// start starts a task of the container, new or from images.
func (k *Container) start(ctx context.Context, from *Images) error {
	mounts, err := k.c.snapshots.Mounts(in(ctx), &snapshotsapi.MountsRequest{Snapshotter: snapshotter, Key: k.name})
	if err != nil {
		return fmt.Errorf("mounts of a snapshot: %w", err)
	}
	r := &tasksapi.CreateTaskRequest{ContainerID: k.name, Rootfs: mounts.GetMounts()}
	if from != nil {
		r.Checkpoint = from.d
	}
	task, err := k.c.tasks.Create(in(ctx), r)
	if err != nil {
		return fmt.Errorf("create a task: %w", err)
	}
	started, err := k.c.tasks.Start(in(ctx), &tasksapi.StartRequest{ContainerID: k.name})
	if err != nil {
		return fmt.Errorf("start a task: %w", err)
	}
	// That of a restored one is known once it is started.
	if k.PID = started.GetPid(); k.PID == 0 {
		k.PID = task.GetPid()
	}
	return nil
}

// Exec runs a command by task.Exec, waits for its end and returns its output, both
// streams together.
func (k *Container) Exec(ctx context.Context, args ...string) (out []byte, code int, err error) {
	id := k.c.name("e")
	file := filepath.Join(k.c.dir, "out", id)
	defer os.Remove(file)
	p := process(args...)
	spec, err := message("Process", p)
	if err != nil {
		return nil, 0, err
	}
	_, err = k.c.tasks.Exec(in(ctx), &tasksapi.ExecProcessRequest{
		ContainerID: k.name, ExecID: id, Spec: spec, Stdout: "file://" + file, Stderr: "file://" + file,
	})
	if err != nil {
		return nil, 0, fmt.Errorf("exec: %w", err)
	}
	if _, err := k.c.tasks.Start(in(ctx), &tasksapi.StartRequest{ContainerID: k.name, ExecID: id}); err != nil {
		return nil, 0, fmt.Errorf("start a process: %w", err)
	}
	ended, err := k.c.tasks.Wait(in(ctx), &tasksapi.WaitRequest{ContainerID: k.name, ExecID: id})
	if err != nil {
		return nil, 0, fmt.Errorf("wait for a process: %w", err)
	}
	if _, err := k.c.tasks.DeleteProcess(in(ctx), &tasksapi.DeleteProcessRequest{ContainerID: k.name, ExecID: id}); err != nil {
		return nil, 0, fmt.Errorf("delete a process: %w", err)
	}
	if out, err = os.ReadFile(file); errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return out, int(ended.GetExitStatus()), err
}

// Run is Exec for a command that has to succeed.
func (k *Container) Run(ctx context.Context, args ...string) error {
	out, code, err := k.Exec(ctx, args...)
	if err == nil && code != 0 {
		err = fmt.Errorf("%q: exit code %d: %s", args, code, bytes.TrimSpace(out))
	}
	return err
}

// Root is its root file system as the host sees it.
func (k *Container) Root() string { return fmt.Sprintf("/proc/%d/root", k.PID) }

// End kills it and deletes it; its snapshot stays.
func (k *Container) End(ctx context.Context) error { return k.c.end(ctx, k.name) }

// Commit makes the snapshot of an ended container one that others start from.
func (k *Container) Commit(ctx context.Context) (snapshot string, err error) {
	snapshot = k.c.name("s")
	_, err = k.c.snapshots.Commit(in(ctx), &snapshotsapi.CommitSnapshotRequest{Snapshotter: snapshotter, Name: snapshot, Key: k.name, Labels: root()})
	if err != nil {
		return "", fmt.Errorf("commit a snapshot: %w", err)
	}
	return snapshot, nil
}

// Delete kills it and deletes it and its snapshot.
func (k *Container) Delete(ctx context.Context) error {
	if err := k.End(ctx); err != nil {
		return err
	}
	if _, err := k.c.snapshots.Remove(in(ctx), &snapshotsapi.RemoveSnapshotRequest{Snapshotter: snapshotter, Key: k.name}); err != nil {
		return fmt.Errorf("remove a snapshot: %w", err)
	}
	return nil
}

// end kills and deletes a container and its task, whichever of them exist.
func (c *Containerd) end(ctx context.Context, name string) error {
	if err := c.endTask(ctx, name); err != nil {
		return err
	}
	if _, err := c.containers.Delete(in(ctx), &containersapi.DeleteContainerRequest{ID: name}); err != nil && status.Code(err) != codes.NotFound {
		return fmt.Errorf("delete a container: %w", err)
	}
	return nil
}

// endTask kills and deletes a container's task, if there is one.
func (c *Containerd) endTask(ctx context.Context, name string) error {
	ctx = in(ctx)
	_, err := c.tasks.Kill(ctx, &tasksapi.KillRequest{ContainerID: name, Signal: uint32(syscall.SIGKILL), All: true})
	if err == nil {
		_, err = c.tasks.Wait(ctx, &tasksapi.WaitRequest{ContainerID: name})
	}
	if err == nil {
		_, err = c.tasks.Delete(ctx, &tasksapi.DeleteTaskRequest{ContainerID: name})
	}
	if err != nil && status.Code(err) != codes.NotFound {
		return fmt.Errorf("end a task: %w", err)
	}
	return nil
}

// Import makes a committed snapshot of the root file system that unpack puts into
// the directory it is given.
func (c *Containerd) Import(ctx context.Context, unpack func(dir string) error) (snapshot string, err error) {
	key := c.name("u")
	r, err := c.snapshots.Prepare(in(ctx), &snapshotsapi.PrepareSnapshotRequest{Snapshotter: snapshotter, Key: key, Labels: root()})
	if err != nil {
		return "", fmt.Errorf("prepare a snapshot: %w", err)
	}
	// Without a parent there is nothing to overlay: the snapshot is a directory.
	m := r.GetMounts()
	if len(m) != 1 || m[0].GetType() != "bind" {
		return "", fmt.Errorf("a first snapshot is mounted as %v instead of one bind mount", m)
	}
	if err := unpack(m[0].GetSource()); err != nil {
		return "", err
	}
	snapshot = c.name("s")
	_, err = c.snapshots.Commit(in(ctx), &snapshotsapi.CommitSnapshotRequest{Snapshotter: snapshotter, Name: snapshot, Key: key, Labels: root()})
	return snapshot, err
}

// root keeps containerd's garbage collection off a snapshot.
func root() map[string]string { return map[string]string{"containerd.io/gc.root": "1"} }

// message makes what containerd expects a runtime specification to be.
func message(kind string, v any) (*anypb.Any, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/" + kind, Value: b}, nil
}

func process(args ...string) *specs.Process {
	caps := []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
		"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
	}
	return &specs.Process{
		Args: args, Cwd: "/", NoNewPrivileges: true,
		Env:          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		Rlimits:      []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 1024}},
	}
}

// spec is what `ctr run` makes of an image, with less in it.
func (c *Containerd) spec(name string, args []string) *specs.Spec {
	return &specs.Spec{
		Version: specs.Version, Root: &specs.Root{Path: "rootfs"}, Hostname: name,
		Process: process(args...),
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
			{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			{Destination: "/run", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: c.cgroup + "/" + name,
			Resources:   &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace},
			},
			MaskedPaths:   []string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/sys/firmware", "/proc/scsi"},
			ReadonlyPaths: []string{"/proc/asound", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
}
