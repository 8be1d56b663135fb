package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"cairn/api/client"
	"cairn/api/types"
)

const (
	// inputChunk is how much input is read at a time, bytes.
	inputChunk = 16 << 10
	// reattachFor is how long a session tries to find its process again.
	reattachFor = 30 * time.Second
	minReattach = 50 * time.Millisecond
	maxReattach = time.Second
)

// errDetached says that the user left the process running.
var errDetached = errors.New("detached")

// session connects this program to a process: what is typed to its input, its
// output to ours. When the daemon is started again under it, it goes on.
type session struct {
	*app
	process types.Process
	stdin   bool
	detach  detacher

	input   chan []byte // nil slices: the end of the input, once
	leave   chan struct{}
	resized chan os.Signal
}

// session connects to a process until it ends, errDetached or an error.
func (a *app) session(ctx context.Context, p types.Process, params *types.AttachProcessParams, stdin bool, keys []byte) (types.Process, error) {
	s := &session{
		app: a, process: p, stdin: stdin, detach: detacher{keys: keys},
		input: make(chan []byte), leave: make(chan struct{}), resized: make(chan os.Signal, 1),
	}
	if stdin && p.Tty {
		restore, err := a.raw()
		if err != nil {
			return p, fmt.Errorf("terminal: %w", err)
		}
		defer restore()
	}
	if p.Tty {
		signal.Notify(s.resized, unix.SIGWINCH)
		defer signal.Stop(s.resized)
		s.resized <- unix.SIGWINCH // it may have changed, or be another, since
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if stdin {
		go s.read(ctx) // a read of a terminal can't be interrupted: it ends with this program
	}
	at, err := a.client.Attach(ctx, p.SandboxId, p.Id, params)
	for err == nil {
		var end *types.Process
		if end, err = s.serve(ctx, at); end != nil {
			return *end, nil
		}
		if errors.Is(err, client.ErrCutOff) && ctx.Err() == nil {
			at, err = s.reattach(ctx, at.Offset())
		}
	}
	return p, err
}

// read passes input on. It holds back what may become the keys that detach.
func (s *session) read(ctx context.Context) {
	for {
		buf := make([]byte, inputChunk)
		n, err := s.In.Read(buf)
		data, leave := buf[:n], false
		if s.process.Tty {
			data, leave = s.detach.feed(data)
		}
		for _, part := range [][]byte{data, nil} {
			if part == nil && err == nil || part != nil && len(part) == 0 {
				continue
			}
			select {
			case s.input <- part:
			case <-ctx.Done():
				return
			}
		}
		if leave {
			close(s.leave)
			return
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				s.say("standard input: %v", err)
			}
			return
		}
	}
}

// say tells the user something, on a line of its own.
func (s *session) say(format string, args ...any) {
	fmt.Fprintf(s.Err, "\r\n[cairn: "+format+"]\r\n", args...)
}

// serve goes on until the attachment ends. It returns the process when that ended.
func (s *session) serve(ctx context.Context, at *client.Attachment) (*types.Process, error) {
	ctx, cancel := context.WithCancel(ctx)
	sent := make(chan struct{})
	defer func() {
		cancel()
		_ = at.Close()
		<-sent
	}()
	go func() {
		defer close(sent)
		if s.send(ctx, at) {
			_ = at.Close() // what was typed is still delivered
		}
	}()
	for {
		ev, err := at.Next(ctx)
		switch {
		case err != nil:
			select {
			case <-s.leave:
				return nil, errDetached
			default:
				return nil, err
			}
		case ev.Exit != nil:
			return ev.Exit, nil
		case ev.Problem != nil:
			s.say("%v", ev.Problem)
		}
		if _, err := s.Out.Write(ev.Output); err != nil {
			return nil, err
		}
	}
}

// send passes on input and sizes until the attachment is over, or the user leaves.
func (s *session) send(ctx context.Context, at *client.Attachment) (leaving bool) {
	for {
		var err error
		select {
		case part := <-s.input:
			if err = at.Write(ctx, part); part == nil {
				err = at.CloseStdin(ctx)
			}
		case <-s.resized:
			if size := s.terminalSize(); size != nil {
				err = at.Resize(ctx, *size)
			}
		case <-s.leave:
			return true
		case <-ctx.Done():
			return false
		}
		if err != nil {
			return false // serve finds out too
		}
	}
}

// reattach attaches again after the connection was lost. It pauses before each try, so
// that a daemon which lets go each time is not asked as fast as it can answer.
func (s *session) reattach(ctx context.Context, offset int64) (*client.Attachment, error) {
	s.say("the connection is lost; trying again")
	// An attachment lives no longer than its context, which has to outlive the search.
	ctx, cancel := context.WithCancel(ctx)
	patience := time.AfterFunc(reattachFor, cancel)
	for pause := minReattach; ; pause = min(2*pause, maxReattach) {
		err := s.idle(ctx, pause)
		if err == nil {
			var at *client.Attachment
			at, err = s.client.Attach(ctx, s.process.SandboxId, s.process.Id, &types.AttachProcessParams{Offset: &offset})
			if err == nil {
				patience.Stop()
				s.say("attached again")
				return at, nil
			}
		}
		c := client.CodeOf(err)
		refused := c != "" && c != types.Unavailable && c != types.Overloaded
		if refused || ctx.Err() != nil || errors.Is(err, errDetached) {
			cancel()
			return nil, err
		}
	}
}

// idle waits while there is nobody to type to.
func (s *session) idle(ctx context.Context, pause time.Duration) error {
	over := time.NewTimer(pause)
	defer over.Stop()
	for {
		select {
		case <-over.C:
			return nil
		case <-s.input: // typed into the void
		case <-s.leave:
			return errDetached
		case <-ctx.Done():
			return client.ErrCutOff
		}
	}
}
