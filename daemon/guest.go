package daemon

import (
	"context"
	"errors"
	"io"
	"syscall"

	"golang.org/x/sys/unix"

	"cairn/sandbox"
	"cairn/sandbox/stem"
)

// guest is a stem.Client as the domain wants it.
type guest struct {
	c     *stem.Client
	stdin int64 // bound on given input, bytes
}

func (g *guest) Close() error { return g.c.Close() }

// Ready also looks whether records can be kept: root inside may have put something
// else in their directory's place.
func (g *guest) Ready(ctx context.Context) error {
	if _, err := g.c.Ping(ctx); err != nil {
		return guestError(err)
	}
	const nobody = "exec_none"
	if _, err := g.c.Exit(nobody); err != nil && !errors.Is(err, stem.NotFound) {
		return guestError(err)
	}
	return nil
}

func (g *guest) Start(ctx context.Context, r sandbox.GuestStart) (int, error) {
	req := stem.Request{ID: r.ID, Argv: r.Command, Env: r.Env, Cwd: r.Cwd, User: r.User}
	if r.TTY != nil {
		req.TTY = &stem.Size{Rows: r.TTY.Rows, Cols: r.TTY.Cols}
	}
	switch r.Stdin {
	case "file":
		req.Stdin = &boundedReader{r: r.StdinData, left: g.stdin}
	case "pipe":
		req.Pipe = true
	}
	started, err := g.c.Start(ctx, req)
	return started.PID, guestError(err)
}

func (g *guest) Signal(ctx context.Context, id string, signal int) error {
	return guestError(g.c.Signal(ctx, id, syscall.Signal(signal), true))
}

func (g *guest) WriteStdin(ctx context.Context, id string, data []byte) error {
	_, err := g.c.WriteStdin(ctx, id, data)
	return guestError(err)
}

func (g *guest) CloseStdin(ctx context.Context, id string) error {
	return guestError(g.c.CloseStdin(ctx, id))
}

func (g *guest) Resize(ctx context.Context, id string, size sandbox.TTY) error {
	return guestError(g.c.Resize(ctx, id, stem.Size{Rows: size.Rows, Cols: size.Cols}))
}

func (g *guest) Wait(ctx context.Context, id string, outputLimit int64) (sandbox.Exit, error) {
	return exitOf(g.c.WaitBounded(ctx, id, outputLimit))
}

func (g *guest) WaitKeeping(ctx context.Context, id string, keep int64) (sandbox.Exit, error) {
	return exitOf(g.c.WaitKeeping(ctx, id, keep))
}

func exitOf(e stem.Exit, err error) (sandbox.Exit, error) {
	if err != nil {
		return sandbox.Exit{}, guestError(err)
	}
	exit := sandbox.Exit{ExitCode: e.Code, Lost: e.Lost, At: e.FinishedAt}
	if e.Signal != 0 {
		const killed = 128 // as shells count
		exit.ExitCode, exit.Signal = killed+e.Signal, unix.SignalName(syscall.Signal(e.Signal))
	}
	return exit, nil
}

func (g *guest) Follow(ctx context.Context, id string, s sandbox.Stream, offset int64, fn func([]byte) error) error {
	err := g.c.Follow(ctx, id, stem.Stream(s), offset, fn)
	var e *stem.Error
	if errors.As(err, &e) {
		return guestError(err)
	}
	return err
}

func (g *guest) Output(id string, s sandbox.Stream, offset int64, max int) (sandbox.Output, error) {
	data, eof, next, err := g.c.Output(id, stem.Stream(s), offset, max)
	return sandbox.Output{Data: data, Offset: offset, Next: next, EOF: eof}, guestError(err)
}

func (g *guest) OutputRange(id string, s sandbox.Stream) (start, end int64, err error) {
	start, end, err = g.c.OutputRange(id, stem.Stream(s))
	return start, end, guestError(err)
}

func (g *guest) Quiet(ctx context.Context) (release func(), err error) { return g.c.Quiet(ctx) }

func (g *guest) Forget(ctx context.Context, id string) error {
	err := g.c.Forget(ctx, id)
	if errors.Is(err, stem.NotFound) {
		return nil
	}
	return guestError(err)
}

// guestError gives a stem's error the domain's code. What the stem says is the
// sandbox's word: it is quoted, never believed.
func guestError(err error) error {
	if err == nil {
		return nil
	}
	var e *stem.Error
	if !errors.As(err, &e) {
		var domain *sandbox.Error
		if errors.As(err, &domain) {
			return err
		}
		return sandbox.Wrap(err, sandbox.CodeInternal, "the sandbox could not be reached")
	}
	switch e.Code {
	case stem.CommandNotFound:
		return sandbox.Wrap(err, sandbox.CodeCommandNotFound, "the command was not found in the sandbox")
	case stem.PermissionDenied:
		return sandbox.Wrap(err, sandbox.CodeNotExecutable, "the command cannot be executed by this user")
	case stem.BadCwd:
		return &sandbox.Error{Code: sandbox.CodeInvalid, Field: "cwd", Message: "there is no such directory in the sandbox", Err: err}
	case stem.BadUser:
		return &sandbox.Error{Code: sandbox.CodeInvalid, Field: "user", Message: "there is no such user or group in the sandbox", Err: err}
	case stem.Limit:
		return sandbox.Wrap(err, sandbox.CodeExhausted, "a limit of the sandbox was reached: processes, memory, disk, or the size of the arguments")
	case stem.OutputLimit:
		return sandbox.Wrap(err, sandbox.CodeTooLarge, "the output is larger than allowed")
	case stem.NotFound:
		return sandbox.Wrap(err, sandbox.CodeNotFound, "there is no such process, or its output is no longer kept")
	case stem.NotRunning:
		return sandbox.Wrap(err, sandbox.CodeConflict, "the process has ended, or its input is closed")
	case stem.Busy:
		return sandbox.Wrap(err, sandbox.CodeConflict, "the process is still running")
	case stem.Unsupported:
		return sandbox.Wrap(err, sandbox.CodeUnsupported, "the sandbox does not support this")
	case stem.Unreachable:
		return sandbox.Wrap(err, sandbox.CodeUnavailable, "the sandbox did not answer in time")
	case stem.Tampered, stem.Protocol:
		return sandbox.Wrap(err, sandbox.CodeConflict, "processes of the sandbox have damaged its control files; restore it or delete it")
	case stem.BadRequest, stem.Exists, stem.Internal:
	}
	return sandbox.Wrap(err, sandbox.CodeInternal, "the sandbox failed to do it")
}

// boundedReader fails when more than left bytes are read.
type boundedReader struct {
	r    io.Reader
	left int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, &sandbox.Error{Code: sandbox.CodeTooLarge, Field: "stdin", Message: "the standard input is larger than allowed"}
	}
	return n, err
}
