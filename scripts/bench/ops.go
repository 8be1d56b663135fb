package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"cairn/api/client"
	"cairn/api/types"
)

// The operations of Cairn that are measured, each as one call of its API.

func (e *env) create(ctx context.Context) (types.Sandbox, error) {
	return client.Get[types.Sandbox](e.cairn.CreateSandbox(ctx, nil, types.CreateSandbox{Image: imageName}))
}

func (e *env) exec(ctx context.Context, sandbox string, command ...string) error {
	_, err := e.execTimed(ctx, sandbox, command...)
	return err
}

// execTimed is exec, with the time that the daemon says it took.
func (e *env) execTimed(ctx context.Context, sandbox string, command ...string) (ms float64, err error) {
	r, err := client.Get[types.ExecResult](e.cairn.Exec(ctx, sandbox, nil, types.Exec{Command: command}))
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("%q: exit code %d: %s", command, r.ExitCode, r.Stderr)
	}
	return r.DurationMs, err
}

// start runs a command in the background.
func (e *env) start(ctx context.Context, sandbox string, command ...string) error {
	yes := true
	_, err := client.Get[types.Process](e.cairn.Exec(ctx, sandbox, nil, types.Exec{Command: command, Background: &yes}))
	return err
}

// checkpoint takes the files.
func (e *env) checkpoint(ctx context.Context, sandbox string) (types.Checkpoint, error) {
	exclude := types.Exclude
	return client.Get[types.Checkpoint](e.cairn.CreateCheckpoint(ctx, sandbox, nil, types.CreateCheckpoint{Processes: &exclude}))
}

func (e *env) restore(ctx context.Context, sandbox, checkpoint string) (types.RestoredSandbox, error) {
	return client.Get[types.RestoredSandbox](e.cairn.RestoreSandbox(ctx, sandbox, nil, types.Restore{Checkpoint: checkpoint}))
}

// fork makes n children of a checkpoint; all of them have to succeed.
func (e *env) fork(ctx context.Context, checkpoint string, n int) ([]types.ForkResult, error) {
	r, err := client.Get[types.ForkResults](e.cairn.ForkCheckpoint(ctx, checkpoint, nil, types.Fork{Count: &n}))
	if err != nil {
		return nil, err
	}
	for _, f := range r.Items {
		if f.Error != nil {
			err = errors.Join(err, errors.New(f.Error.Detail))
		}
	}
	return r.Items, err
}

func (e *env) remove(ctx context.Context, sandbox string) error {
	return client.Done(e.cairn.DeleteSandbox(ctx, sandbox))
}

// write changes one file of a sandbox.
func (e *env) write(ctx context.Context, sandbox, path, text string) error {
	yes := true
	_, err := client.Get[types.FileInfo](e.cairn.WriteFileWithBody(ctx, sandbox,
		&types.WriteFileParams{Path: path, Parents: &yes}, "application/octet-stream", bytes.NewBufferString(text)))
	return err
}

// unpack puts a tar into a directory of a sandbox.
func (e *env) unpack(ctx context.Context, sandbox, dir, tar string) error {
	f, err := os.Open(tar)
	if err != nil {
		return err
	}
	defer f.Close()
	yes := true
	_, err = client.Get[types.FileInfo](e.cairn.WriteFileWithBody(ctx, sandbox,
		&types.WriteFileParams{Path: dir, Parents: &yes}, "application/x-tar", f))
	return err
}

// settled waits until the daemon has nothing left to do in the background that
// would disturb a measurement: checkpoints durable, the pool full.
func (e *env) settled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		full, err := e.poolFull(ctx)
		if err != nil {
			return err
		}
		open, err := e.captured(ctx)
		if err != nil {
			return err
		}
		if full && !open {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the daemon does not settle (pool full: %t, checkpoints durable: %t): %w", full, !open, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// poolFull says whether as many containers answer as there should be.
func (e *env) poolFull(ctx context.Context) (bool, error) {
	list, err := e.sandboxes(ctx)
	if err != nil {
		return false, err
	}
	slots, err := os.ReadDir(e.cairn.Slots())
	if err != nil {
		return false, err
	}
	if len(slots) != len(list)+e.warm {
		return false, nil
	}
	for _, s := range slots {
		if _, err := os.Stat(filepath.Join(e.cairn.Slots(), s.Name(), "io", "stem.sock")); err != nil {
			return false, nil //nolint:nilerr // not there yet
		}
	}
	return true, nil
}

func (e *env) sandboxes(ctx context.Context) ([]types.Sandbox, error) {
	limit := 1000
	return client.All(func(cursor *string) ([]types.Sandbox, string, error) {
		l, err := client.Get[types.SandboxList](e.cairn.ListSandboxes(ctx, &types.ListSandboxesParams{Cursor: cursor, Limit: &limit}))
		return l.Items, l.NextCursor, err
	})
}

// captured says whether the latest checkpoints are not durable yet.
func (e *env) captured(ctx context.Context) (bool, error) {
	limit := 100
	l, err := client.Get[types.CheckpointList](e.cairn.ListCheckpoints(ctx, &types.ListCheckpointsParams{Limit: &limit}))
	for _, c := range l.Items {
		if c.Durability == types.DurabilityCaptured {
			return true, err
		}
	}
	return false, err
}

// clear deletes sandboxes.
func (e *env) clear(ctx context.Context, ids []string) error {
	var errs []error
	for _, id := range ids {
		errs = append(errs, e.remove(ctx, id))
	}
	return errors.Join(errs...)
}
