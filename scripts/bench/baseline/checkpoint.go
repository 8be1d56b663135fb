package baseline

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	"google.golang.org/grpc/metadata"
)

// lease keeps the images of checkpoints from containerd's garbage collection.
const lease = "checkpoints"

// bundled makes, in dir, the program criu that runc looks for in PATH: the bundle's, with
// the loader and the libraries beside it.
func bundled(bundle, dir string) error {
	script := fmt.Sprintf("#!/bin/sh\nexec %[1]s/ld.so --library-path %[1]s %[1]s/criu \"$@\"\n", bundle)
	return os.WriteFile(filepath.Join(dir, "criu"), []byte(script), 0o755)
}

func leased(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(in(ctx), "containerd-lease", lease)
}

// Images are a container's processes, in containerd's content store.
type Images struct{ d *types.Descriptor }

// Bytes is how large they are.
func (i Images) Bytes() int64 { return i.d.GetSize() }

// Checkpoint dumps the container's processes by task.Checkpoint, and lets them run on. Its
// files are not part of it.
func (k *Container) Checkpoint(ctx context.Context) (Images, error) {
	r, err := k.c.tasks.Checkpoint(leased(ctx), &tasksapi.CheckpointTaskRequest{ContainerID: k.name})
	if err != nil {
		return Images{}, fmt.Errorf("checkpoint a task: %w", err)
	}
	if len(r.GetDescriptors()) == 0 {
		return Images{}, fmt.Errorf("a checkpoint of %s without images", k.name)
	}
	return Images{r.GetDescriptors()[0]}, nil
}

// Restore ends the container's processes and starts those of the images as a new task, on
// the files as they are.
func (k *Container) Restore(ctx context.Context, from Images) error {
	if err := k.c.endTask(ctx, k.name); err != nil {
		return err
	}
	return k.start(ctx, &from)
}

// CreateFrom is Create with the processes of the images.
func (c *Containerd) CreateFrom(ctx context.Context, parent string, from Images, args ...string) (*Container, error) {
	return c.create(ctx, parent, &from, args...)
}

// makeLease makes what keeps images of checkpoints.
func (c *Containerd) makeLease(ctx context.Context) error {
	_, err := leasesapi.NewLeasesClient(c.conn).Create(in(ctx), &leasesapi.CreateRequest{ID: lease})
	if err != nil {
		return fmt.Errorf("make a lease: %w", err)
	}
	return nil
}
