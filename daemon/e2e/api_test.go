package e2e

import (
	"encoding/base64"
	"fmt"
	"io"
	"strings"

	"cairn/api/client"
	"cairn/api/types"
)

func (h *host) create(c types.CreateSandbox) (types.Sandbox, error) {
	ctx, cancel := request()
	defer cancel()
	if c.Image == "" {
		c.Image = imageName
	}
	return client.Get[types.Sandbox](h.client.CreateSandbox(ctx, nil, c))
}

func (h *host) sandbox(id string) (types.Sandbox, error) {
	ctx, cancel := request()
	defer cancel()
	return client.Get[types.Sandbox](h.client.GetSandbox(ctx, id))
}

func (h *host) sandboxes() ([]types.Sandbox, error) {
	return client.All(func(cursor *string) ([]types.Sandbox, string, error) {
		ctx, cancel := request()
		defer cancel()
		l, err := client.Get[types.SandboxList](h.client.ListSandboxes(ctx, &types.ListSandboxesParams{Cursor: cursor}))
		return l.Items, l.NextCursor, err
	})
}

func (h *host) remove(id string) error {
	ctx, cancel := request()
	defer cancel()
	return client.Done(h.client.DeleteSandbox(ctx, id))
}

func (h *host) pause(id string) (types.Sandbox, error) {
	ctx, cancel := request()
	defer cancel()
	return client.Get[types.Sandbox](h.client.PauseSandbox(ctx, id, nil))
}

func (h *host) resume(id string) (types.Sandbox, error) {
	ctx, cancel := request()
	defer cancel()
	return client.Get[types.Sandbox](h.client.ResumeSandbox(ctx, id, nil))
}

// checkpoint takes one of the files alone.
func (h *host) checkpoint(id string) (types.Checkpoint, error) {
	return h.checkpointAs(id, types.CreateCheckpoint{Processes: ptr(types.Exclude)})
}

// durable takes a checkpoint of the files and waits until it is durable.
func (h *host) durable(id string) (types.Checkpoint, error) {
	return h.checkpointAs(id, types.CreateCheckpoint{Processes: ptr(types.Exclude), Wait: ptr(types.CreateCheckpointWait("durable"))})
}

// dump takes a checkpoint with the processes.
func (h *host) dump(id string) (types.Checkpoint, error) {
	return h.checkpointAs(id, types.CreateCheckpoint{Processes: ptr(types.Include)})
}

// sleep takes a checkpoint with the processes that stops the sandbox.
func (h *host) sleep(id string) (types.Checkpoint, error) {
	return h.checkpointAs(id, types.CreateCheckpoint{Processes: ptr(types.Include), Stop: ptr(true)})
}

func (h *host) checkpointAs(id string, c types.CreateCheckpoint) (types.Checkpoint, error) {
	ctx, cancel := request()
	defer cancel()
	return client.Get[types.Checkpoint](h.client.CreateCheckpoint(ctx, id, nil, c))
}

func (h *host) getCheckpoint(id string) (types.Checkpoint, error) {
	ctx, cancel := request()
	defer cancel()
	return client.Get[types.Checkpoint](h.client.GetCheckpoint(ctx, id))
}

func (h *host) checkpoints() ([]types.Checkpoint, error) {
	return client.All(func(cursor *string) ([]types.Checkpoint, string, error) {
		ctx, cancel := request()
		defer cancel()
		l, err := client.Get[types.CheckpointList](h.client.ListCheckpoints(ctx, &types.ListCheckpointsParams{Cursor: cursor}))
		return l.Items, l.NextCursor, err
	})
}

func (h *host) deleteCheckpoint(id string) error {
	ctx, cancel := request()
	defer cancel()
	return client.Done(h.client.DeleteCheckpoint(ctx, id))
}

func (h *host) verify(id string) (types.Checkpoint, error) {
	ctx, cancel := request()
	defer cancel()
	return client.Get[types.Checkpoint](h.client.VerifyCheckpoint(ctx, id, nil, types.VerifyCheckpoint{}))
}

// restore brings the files back, or some of them.
func (h *host) restore(id, checkpoint string, paths ...string) (types.RestoredSandbox, error) {
	r := types.Restore{Checkpoint: checkpoint, Processes: ptr(types.Exclude)}
	if len(paths) > 0 {
		r.Paths = &paths
	}
	return h.restoreAs(id, r)
}

// revive brings the files and the processes back.
func (h *host) revive(id, checkpoint string) (types.RestoredSandbox, error) {
	return h.restoreAs(id, types.Restore{Checkpoint: checkpoint, Processes: ptr(types.Include)})
}

func (h *host) restoreAs(id string, r types.Restore) (types.RestoredSandbox, error) {
	ctx, cancel := request()
	defer cancel()
	return client.Get[types.RestoredSandbox](h.client.RestoreSandbox(ctx, id, nil, r))
}

// fork makes one sandbox from the files of a checkpoint.
func (h *host) fork(checkpoint string) (types.Sandbox, error) {
	return onlyChild(h.forkAs(checkpoint, types.Fork{Processes: ptr(types.Exclude)}))
}

// forkDump makes one sandbox from the files and the processes of a checkpoint.
func (h *host) forkDump(checkpoint string) (types.Sandbox, error) {
	return onlyChild(h.forkAs(checkpoint, types.Fork{Processes: ptr(types.Include)}))
}

func (h *host) forkAs(checkpoint string, f types.Fork) (types.ForkResults, error) {
	ctx, cancel := request()
	defer cancel()
	return client.Get[types.ForkResults](h.client.ForkCheckpoint(ctx, checkpoint, nil, f))
}

// forkNow makes one sandbox from another.
func (h *host) forkNow(id string) (types.Sandbox, error) {
	ctx, cancel := request()
	defer cancel()
	return onlyChild(client.Get[types.ForkResults](h.client.ForkSandbox(ctx, id, nil, types.Fork{Processes: ptr(types.Exclude)})))
}

func onlyChild(r types.ForkResults, err error) (types.Sandbox, error) {
	switch {
	case err != nil:
		return types.Sandbox{}, err
	case len(r.Items) != 1:
		return types.Sandbox{}, fmt.Errorf("%d results of one fork", len(r.Items))
	case r.Items[0].Error != nil:
		return types.Sandbox{}, &client.Error{Problem: *r.Items[0].Error}
	}
	return *r.Items[0].Sandbox, nil
}

func (h *host) diff(from, to string) (types.Diff, error) {
	ctx, cancel := request()
	defer cancel()
	return client.Get[types.Diff](h.client.DiffCheckpoints(ctx, from, &types.DiffCheckpointsParams{To: to}))
}

// checkpointTar gives a directory of a checkpoint as a tar.
func (h *host) checkpointTar(id, path string, read func(io.Reader) error) error {
	ctx, cancel := request()
	defer cancel()
	body, _, err := client.Body(h.client.ReadCheckpointFile(ctx, id, &types.ReadCheckpointFileParams{Path: path}, client.Accept("application/x-tar")))
	if err != nil {
		return err
	}
	defer body.Close()
	return read(body)
}

func (h *host) exec(id string, e types.Exec) (types.ExecResult, error) {
	ctx, cancel := request()
	defer cancel()
	return client.Get[types.ExecResult](h.client.Exec(ctx, id, nil, e))
}

// sh runs a script and gives what it printed; it must succeed.
func (h *host) sh(id, script string) (string, error) {
	r, err := h.exec(id, types.Exec{Command: []string{"sh", "-c", script}})
	if err != nil {
		return "", err
	}
	if r.ExitCode != 0 {
		return "", fmt.Errorf("%q ended with %d: %s%s", script, r.ExitCode, r.Stdout, r.Stderr)
	}
	return strings.TrimSuffix(r.Stdout, "\n"), nil
}

// background starts a command that goes on.
func (h *host) background(id string, command ...string) (types.Process, error) {
	ctx, cancel := request()
	defer cancel()
	return client.Get[types.Process](h.client.Exec(ctx, id, nil, types.Exec{Command: command, Background: ptr(true), OpenStdin: ptr(true)}))
}

func (h *host) process(id, exec string) (types.Process, error) {
	ctx, cancel := request()
	defer cancel()
	return client.Get[types.Process](h.client.GetProcess(ctx, id, exec))
}

func (h *host) signal(id, exec, signal string) error {
	ctx, cancel := request()
	defer cancel()
	return client.Done(h.client.SignalProcess(ctx, id, exec, nil, types.Signal{Signal: signal}))
}

func (h *host) waitProcess(id, exec string) (types.Process, error) {
	ctx, cancel := request()
	defer cancel()
	return client.Get[types.Process](h.client.WaitProcess(ctx, id, exec, nil))
}

func (h *host) stdin(id, exec, text string) error {
	ctx, cancel := request()
	defer cancel()
	return client.Done(h.client.WriteStdinWithBody(ctx, id, exec, nil, "application/octet-stream", strings.NewReader(text)))
}

// output gives a process's standard output so far.
func (h *host) output(id, exec string) (string, error) {
	ctx, cancel := request()
	defer cancel()
	o, err := client.Get[types.Output](h.client.GetProcessOutput(ctx, id, exec, nil))
	if err == nil && o.Encoding == types.Base64 {
		var b []byte
		b, err = base64.StdEncoding.DecodeString(o.Data)
		return string(b), err
	}
	return o.Data, err
}

func (h *host) readFile(id, path string) (string, error) {
	ctx, cancel := request()
	defer cancel()
	body, _, err := client.Body(h.client.ReadFile(ctx, id, &types.ReadFileParams{Path: path}))
	if err != nil {
		return "", err
	}
	defer body.Close()
	b, err := io.ReadAll(body)
	return string(b), err
}
