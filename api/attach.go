package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"cairn/api/types"
	"cairn/sandbox"
)

const (
	// maxAttachFrame bounds a message of an attached caller, bytes, as the contract says.
	maxAttachFrame = 64 << 10
	// attachQueue is how many of its messages may wait for the process to read.
	attachQueue = 16
	// lastInput is how long input that a caller sent before it went may wait.
	lastInput = time.Second
)

// errDetached ends an attachment whose caller is gone.
var errDetached = errors.New("the caller has detached")

func (s *server) ResizeProcess(ctx context.Context, r ResizeProcessRequestObject) (ResizeProcessResponseObject, error) {
	if err := s.Service.Resize(ctx, r.SandboxId, r.ExecId, terminalSize(*r.Body)); err != nil {
		return nil, err
	}
	return ResizeProcess204Response{}, nil
}

func terminalSize(t types.TerminalSize) sandbox.TTY {
	return sandbox.TTY{Rows: uint16(t.Rows), Cols: uint16(t.Cols)}
}

func (s *server) AttachProcess(ctx context.Context, r AttachProcessRequestObject) (AttachProcessResponseObject, error) {
	req := requestOf(ctx)
	if !strings.EqualFold(req.Header.Get("Upgrade"), "websocket") {
		return nil, sandbox.Invalid("upgrade", "this address is for WebSocket connections")
	}
	if r.Params.Tail != nil && r.Params.Offset != nil {
		return nil, sandbox.Invalid("tail", "not together with offset")
	}
	a := &attachment{s: s, stream: sandbox.Stream(orDefault(r.Params.Stream, types.Stdout)), input: make(chan stdinPart, attachQueue)}
	var err error
	if a.process, err = s.Service.Process(ctx, r.SandboxId, r.ExecId); err != nil {
		return nil, err
	}
	start, end, err := s.Service.OutputRange(ctx, r.SandboxId, r.ExecId, a.stream)
	if err != nil {
		return nil, err
	}
	a.offset = max(start, value(r.Params.Offset))
	if r.Params.Tail != nil {
		a.offset = max(start, end-*r.Params.Tail)
	}
	return respond(func(w http.ResponseWriter) error {
		if a.conn, err = websocket.Accept(w, req, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled}); err != nil {
			s.log.DebugContext(ctx, "no WebSocket", "err", err)
			return nil //nolint:nilerr // the library has answered
		}
		a.run(ctx)
		return nil
	}), nil
}

// attachment is one caller that follows a process and types. Output goes from the
// file where it is kept to the caller, at the caller's pace; no connection into
// the sandbox is open meanwhile.
type attachment struct {
	s       *server
	conn    *websocket.Conn
	process sandbox.Process
	stream  sandbox.Stream
	offset  int64
	input   chan stdinPart
}

// stdinPart is a piece of input, or its end.
type stdinPart struct {
	data  []byte
	close bool
}

// run serves the caller until the process ends or the caller goes.
func (a *attachment) run(ctx context.Context) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() { _ = a.conn.CloseNow() }() // it may be closed
	defer cancel(nil)
	a.conn.SetReadLimit(maxAttachFrame)
	if a.tell(ctx, types.AttachMessage{Attached: &types.Attached{Offset: a.offset, Process: processOf(a.process)}}) != nil {
		return
	}
	wg.Go(func() { a.listen(ctx, cancel) })
	wg.Go(func() { a.typeInput(ctx, cancel) })
	wg.Go(func() { a.keepAlive(ctx, cancel) })
	p, err := a.follow(ctx)
	switch {
	case ctx.Err() != nil:
		// The caller is gone, or the daemon stops; a caller that is there may attach again.
	case err != nil:
		a.problem(ctx, err)
		_ = a.conn.Close(websocket.StatusInternalError, "")
	default:
		end := processOf(p)
		if a.tell(ctx, types.AttachMessage{Exit: &end}) == nil {
			_ = a.conn.Close(websocket.StatusNormalClosure, "")
		}
	}
}

// follow sends output to the end of the process.
func (a *attachment) follow(ctx context.Context) (sandbox.Process, error) {
	id, procID := a.process.SandboxID, a.process.ID
	err := a.s.Service.Follow(ctx, id, procID, a.stream, a.offset, func(data []byte) error {
		for part := range slices.Chunk(data, maxAttachFrame) {
			if err := a.send(ctx, websocket.MessageBinary, part); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return sandbox.Process{}, err
	}
	return a.s.Service.Wait(ctx, id, procID)
}

func (a *attachment) send(ctx context.Context, kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, eventTime, errDetached)
	defer cancel()
	return a.conn.Write(ctx, kind, data)
}

func (a *attachment) tell(ctx context.Context, m types.AttachMessage) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return a.send(ctx, websocket.MessageText, data)
}

func (a *attachment) problem(ctx context.Context, err error) {
	p := problemOf(ctx, err)
	if p.Status == http.StatusInternalServerError {
		a.s.log.ErrorContext(ctx, "attachment failed", "err", err)
	}
	_ = a.tell(ctx, types.AttachMessage{Problem: &p}) // a caller that is gone is noticed elsewhere
}

// listen takes the caller's messages. Input waits in line; all else is done at once.
func (a *attachment) listen(ctx context.Context, cancel context.CancelCauseFunc) {
	defer func() {
		close(a.input)
		time.AfterFunc(lastInput, func() { cancel(errDetached) })
	}()
	for {
		kind, data, err := a.conn.Read(ctx)
		if err != nil {
			return
		}
		part := stdinPart{data: data}
		if kind == websocket.MessageText {
			c, err := parseControl(data)
			if err == nil {
				err = a.control(ctx, c)
			}
			if err != nil {
				a.problem(ctx, err)
				continue
			}
			if part = (stdinPart{close: c.CloseStdin}); !part.close {
				continue
			}
		}
		select {
		case a.input <- part:
		case <-ctx.Done():
			return
		}
	}
}

// typeInput gives the process its input. When the caller has gone and all was
// given, it ends the attachment.
func (a *attachment) typeInput(ctx context.Context, cancel context.CancelCauseFunc) {
	id, procID := a.process.SandboxID, a.process.ID
	for part := range a.input {
		var err error
		if len(part.data) > 0 {
			err = a.s.Service.WriteStdin(ctx, id, procID, part.data)
		} else if part.close {
			err = a.s.Service.CloseStdin(ctx, id, procID)
		}
		// Of a process that has ended the caller hears otherwise.
		if err != nil && ctx.Err() == nil && sandbox.CodeOf(err) != sandbox.CodeConflict {
			a.problem(ctx, err)
		}
	}
	cancel(errDetached)
}

// keepAlive finds out about callers that are gone without a word.
func (a *attachment) keepAlive(ctx context.Context, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(a.s.heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			short, stop := context.WithTimeout(ctx, eventTime)
			err := a.conn.Ping(short)
			stop()
			if err != nil {
				cancel(errDetached)
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// control is a caller's text message.
type control struct {
	Resize     *types.TerminalSize `json:"resize"`
	Signal     json.RawMessage     `json:"signal"`
	CloseStdin bool                `json:"close_stdin"`
	signal     int                 // 0: none
}

// parseControl checks a text message as the contract has it.
func parseControl(data []byte) (c control, err error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return c, sandbox.Invalid("message", "not an AttachControl: %s", clip(err.Error()))
	}
	if dec.More() {
		return c, sandbox.Invalid("message", "something follows the JSON value")
	}
	if r := c.Resize; r != nil && (r.Rows < 1 || r.Rows > 1<<16-1 || r.Cols < 1 || r.Cols > 1<<16-1) {
		return c, sandbox.Invalid("resize", "rows and cols from 1 to 65535")
	}
	if len(c.Signal) == 0 || string(c.Signal) == "null" {
		return c, nil
	}
	var name string
	var number int
	if json.Unmarshal(c.Signal, &number) == nil {
		name = strconv.Itoa(number)
	} else if json.Unmarshal(c.Signal, &name) != nil {
		return c, sandbox.Invalid("signal", "a number or a name")
	}
	c.signal, err = signalNumber(name)
	return c, err
}

// control does what is to be done at once.
func (a *attachment) control(ctx context.Context, c control) error {
	id, procID := a.process.SandboxID, a.process.ID
	if c.Resize != nil {
		if err := a.s.Service.Resize(ctx, id, procID, terminalSize(*c.Resize)); err != nil {
			return err
		}
	}
	if c.signal != 0 {
		return a.s.Service.Signal(ctx, id, procID, c.signal)
	}
	return nil
}
