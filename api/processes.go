package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"cairn/api/types"
	"cairn/sandbox"
)

const (
	defaultOutput = 4 << 20 // bytes of each stream in an answer, as the contract says
	octetStream   = "application/octet-stream"
)

func execRequest(b *types.Exec) (sandbox.ExecRequest, error) {
	r := sandbox.ExecRequest{
		Command: b.Command, Cwd: value(b.Cwd), Env: value(b.Env), User: value(b.User), OpenStdin: value(b.OpenStdin),
		Timeout: time.Duration(value(b.TimeoutMs)) * time.Millisecond, Background: value(b.Background), OutputLimitBytes: value(b.OutputLimitBytes),
	}
	if b.Tty != nil {
		size := terminalSize(*b.Tty)
		r.TTY = &size
	}
	switch {
	case r.TTY != nil && (b.Stdin != nil || b.StdinBase64 != nil):
		return r, sandbox.Invalid("tty", "not together with stdin or stdin_base64: write to the terminal once it runs")
	case b.Stdin != nil && b.StdinBase64 != nil:
		return r, sandbox.Invalid("stdin_base64", "not together with stdin")
	case r.OpenStdin && !r.Background:
		return r, sandbox.Invalid("open_stdin", "only together with background")
	case r.OpenStdin && (b.Stdin != nil || b.StdinBase64 != nil):
		return r, sandbox.Invalid("open_stdin", "not together with stdin or stdin_base64")
	case b.Stdin != nil:
		r.Stdin = strings.NewReader(*b.Stdin)
	case b.StdinBase64 != nil:
		r.Stdin = bytes.NewReader(*b.StdinBase64)
	}
	return r, nil
}

func (s *server) Exec(ctx context.Context, r ExecRequestObject) (ExecResponseObject, error) {
	req, err := execRequest(r.Body)
	if err != nil {
		return nil, err
	}
	if req.Background {
		p, err := s.Service.Exec(ctx, r.SandboxId, req)
		if err != nil {
			return nil, err
		}
		return Exec202JSONResponse(processOf(p)), nil
	}
	if negotiate(requestOf(ctx).Header.Get("Accept"), "application/json", eventStream) == eventStream {
		return s.execStream(ctx, r.SandboxId, req)
	}
	most := orDefault(r.Body.MaxOutputBytes, defaultOutput)
	res, err := s.Service.Run(ctx, r.SandboxId, req, most)
	if err != nil {
		return nil, err
	}
	p := res.Process
	out := Exec200JSONResponse{
		Id: p.ID, ExitCode: p.ExitCode, Signal: p.Signal, TimedOut: p.TimedOut, Truncated: p.Truncated,
		StdoutTruncated: res.StdoutCut, StderrTruncated: res.StderrCut,
		DurationMs: float64(res.Duration) / float64(time.Millisecond),
	}
	out.Stdout, out.StdoutBase64 = text(res.Stdout)
	out.Stderr, out.StderrBase64 = text(res.Stderr)
	return out, nil
}

// text gives output as a string, and as it is where that would lose something.
func text(b []byte) (string, *[]byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), &b
}

// execStream runs a foreground command whose output is streamed. It is killed
// when its caller goes away.
func (s *server) execStream(ctx context.Context, id string, req sandbox.ExecRequest) (ExecResponseObject, error) {
	p, err := s.Service.Exec(ctx, id, req)
	if err != nil {
		return nil, err
	}
	return respond(func(w http.ResponseWriter) error {
		ended := false
		defer func() {
			if !ended {
				s.abandon(ctx, p)
			}
		}()
		e, err := newEvents(w)
		if err != nil {
			return err
		}
		if err := e.send(0, "started", processOf(p)); err != nil {
			return err
		}
		ended = s.follow(ctx, e, p.SandboxID, p.ID, []sandbox.Stream{sandbox.Stdout, sandbox.Stderr}, 0)
		return nil
	}), nil
}

// abandon kills a foreground command whose caller is gone.
func (s *server) abandon(ctx context.Context, p sandbox.Process) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := s.Service.Signal(ctx, p.SandboxID, p.ID, int(unix.SIGKILL))
	if c := sandbox.CodeOf(err); err != nil && c != sandbox.CodeNotFound && c != sandbox.CodeConflict {
		s.log.WarnContext(ctx, "cannot kill an abandoned command", "process", p.ID, "err", err)
	}
}

// follow streams output until the process has ended, and says whether it saw that.
func (s *server) follow(ctx context.Context, e *events, id, procID string, streams []sandbox.Stream, offset int64) (ended bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer e.keepAlive(s.heartbeat, cancel)()
	g, gctx := errgroup.WithContext(ctx)
	for _, stream := range streams {
		g.Go(func() error {
			at := offset
			return s.Service.Follow(gctx, id, procID, stream, offset, func(data []byte) error {
				chunk := types.OutputChunk{Stream: types.Stream(stream), Offset: at}
				chunk.Data, chunk.Encoding = encode(data)
				at += int64(len(data))
				return e.send(0, "output", chunk)
			})
		})
	}
	err := g.Wait()
	var p sandbox.Process
	if err == nil {
		p, err = s.Service.Wait(ctx, id, procID)
	}
	if err != nil {
		s.problem(ctx, e, err)
		return false
	}
	_ = e.send(0, "exit", processOf(p)) // it has ended whether or not somebody hears it
	return true
}

func (s *server) ListProcesses(ctx context.Context, r ListProcessesRequestObject) (ListProcessesResponseObject, error) {
	l, err := s.Service.Processes(ctx, r.SandboxId)
	if err != nil {
		return nil, err
	}
	return ListProcesses200JSONResponse{Items: each(l, processOf)}, nil
}

func (s *server) GetProcess(ctx context.Context, r GetProcessRequestObject) (GetProcessResponseObject, error) {
	p, err := s.Service.Process(ctx, r.SandboxId, r.ExecId)
	if err != nil {
		return nil, err
	}
	return GetProcess200JSONResponse(processOf(p)), nil
}

func (s *server) GetProcessOutput(ctx context.Context, r GetProcessOutputRequestObject) (GetProcessOutputResponseObject, error) {
	q := r.Params
	form := negotiate(requestOf(ctx).Header.Get("Accept"), "application/json", octetStream, eventStream)
	stream := sandbox.Stream(orDefault(q.Stream, types.Stdout))
	offset := value(q.Offset)
	switch form {
	case "":
		return nil, &sandbox.Error{Code: codeNotAcceptable, Message: "the output comes as application/json, application/octet-stream or text/event-stream"}
	case eventStream:
		if _, err := s.Service.Process(ctx, r.SandboxId, r.ExecId); err != nil {
			return nil, err
		}
		streams := []sandbox.Stream{sandbox.Stdout, sandbox.Stderr}
		if q.Stream != nil {
			streams = []sandbox.Stream{stream}
		}
		return respond(func(w http.ResponseWriter) error {
			e, err := newEvents(w)
			if err != nil {
				return err
			}
			s.follow(ctx, e, r.SandboxId, r.ExecId, streams, offset)
			return nil
		}), nil
	}
	wait := time.Duration(value(q.Wait)) * time.Millisecond
	o, err := s.output(ctx, r.SandboxId, r.ExecId, stream, offset, orDefault(q.Limit, 1<<20), wait)
	if err != nil {
		return nil, err
	}
	if form == octetStream {
		return respond(func(w http.ResponseWriter) error {
			setOutputHeaders(w, o)
			w.Header().Set("Content-Type", octetStream)
			w.Header().Set("Content-Length", strconv.Itoa(len(o.Data)))
			_, err := w.Write(o.Data)
			return err
		}), nil
	}
	return respond(func(w http.ResponseWriter) error {
		setOutputHeaders(w, o)
		out := types.Output{Stream: types.Stream(stream), Offset: o.Offset, NextOffset: o.Next, Eof: o.EOF}
		out.Data, out.Encoding = encode(o.Data)
		return writeJSON(w, out)
	}), nil
}

func setOutputHeaders(w http.ResponseWriter, o sandbox.Output) {
	w.Header().Set("Cairn-Next-Offset", strconv.FormatInt(o.Next, 10))
	w.Header().Set("Cairn-Eof", strconv.FormatBool(o.EOF))
}

// errSome ends a wait for output.
var errSome = errors.New("there is output")

// output reads output, after waiting for some when there is none.
func (s *server) output(ctx context.Context, id, procID string, stream sandbox.Stream, offset int64, limit int, wait time.Duration) (sandbox.Output, error) {
	o, err := s.Service.ProcessOutput(ctx, id, procID, stream, offset, limit)
	if err != nil || wait == 0 || len(o.Data) > 0 || o.EOF {
		return o, err
	}
	short, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	err = s.Service.Follow(short, id, procID, stream, offset, func([]byte) error { return errSome })
	if err != nil && !errors.Is(err, errSome) && short.Err() == nil {
		return o, err
	}
	if ctx.Err() != nil {
		return o, context.Cause(ctx)
	}
	return s.Service.ProcessOutput(ctx, id, procID, stream, offset, limit)
}

func (s *server) WaitProcess(ctx context.Context, r WaitProcessRequestObject) (WaitProcessResponseObject, error) {
	short := ctx
	if ms := value(r.Params.TimeoutMs); ms > 0 {
		var cancel context.CancelFunc
		short, cancel = context.WithTimeout(ctx, time.Duration(min(ms, int64(1<<40)))*time.Millisecond)
		defer cancel()
	}
	p, err := s.Service.Wait(short, r.SandboxId, r.ExecId)
	if err != nil && short.Err() != nil && ctx.Err() == nil {
		p, err = s.Service.Process(ctx, r.SandboxId, r.ExecId)
	}
	if err != nil {
		return nil, err
	}
	return WaitProcess200JSONResponse(processOf(p)), nil
}

func (s *server) SignalProcess(ctx context.Context, r SignalProcessRequestObject) (SignalProcessResponseObject, error) {
	n, err := signalNumber(r.Body.Signal)
	if err != nil {
		return nil, err
	}
	if err := s.Service.Signal(ctx, r.SandboxId, r.ExecId, n); err != nil {
		return nil, err
	}
	return SignalProcess204Response{}, nil
}

func signalNumber(name string) (int, error) {
	if n, err := strconv.Atoi(name); err == nil && n >= 1 && n <= 64 {
		return n, nil
	}
	full := name
	if !strings.HasPrefix(full, "SIG") {
		full = "SIG" + full
	}
	if n := unix.SignalNum(full); n != 0 {
		return int(n), nil
	}
	return 0, sandbox.Invalid("signal", "there is no signal %q", name)
}

func (s *server) WriteStdin(ctx context.Context, r WriteStdinRequestObject) (WriteStdinResponseObject, error) {
	data, err := io.ReadAll(r.Body) // bounded by the contract
	if err != nil {
		return nil, bodyError(err)
	}
	if len(data) > 0 {
		if err := s.Service.WriteStdin(ctx, r.SandboxId, r.ExecId, data); err != nil {
			return nil, err
		}
	}
	if value(r.Params.Close) {
		if err := s.Service.CloseStdin(ctx, r.SandboxId, r.ExecId); err != nil {
			return nil, err
		}
	}
	return WriteStdin204Response{}, nil
}

// bodyError says what reading a body failed of.
func bodyError(err error) error {
	var big *http.MaxBytesError
	if errors.As(err, &big) {
		return err
	}
	return sandbox.Wrap(err, sandbox.CodeInvalid, "the body could not be read to its end")
}
