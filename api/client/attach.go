package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/coder/websocket"

	"cairn/api/types"
)

const (
	// maxInput is how much of input goes into one message, bytes.
	maxInput = 32 << 10
	// maxMessage bounds a message of the daemon, bytes.
	maxMessage = 1 << 20
)

// ErrCutOff says that an attachment ended before its process did: the connection
// or the daemon is gone. Attaching again at Offset goes on.
var ErrCutOff = errors.New("the connection to the process was cut off")

// Attachment is a connection to a process. Next is for one goroutine; the other
// methods may be called from any.
type Attachment struct {
	// Process is the process as it was when the attachment began.
	Process types.Process

	conn   *websocket.Conn
	stop   func() bool // watching the context
	offset int64
}

// AttachEvent is what one call of Next gives: one of its fields.
type AttachEvent struct {
	Output  []byte
	Problem *Error         // something that was asked for failed
	Exit    *types.Process // the process has ended; nothing follows
}

// Attach connects to a process. When ctx ends, so does the attachment.
func (c *Client) Attach(ctx context.Context, sandbox, process string, params *types.AttachProcessParams) (*Attachment, error) {
	req, err := NewAttachProcessRequest(c.Server, sandbox, process, params)
	if err != nil {
		return nil, err
	}
	if err := c.applyEditors(ctx, req, nil); err != nil {
		return nil, err
	}
	o := &websocket.DialOptions{HTTPHeader: req.Header, CompressionMode: websocket.CompressionDisabled}
	if h, ok := c.Client.(*http.Client); ok {
		o.HTTPClient = h
	}
	conn, resp, err := websocket.Dial(ctx, req.URL.String(), o)
	if err != nil {
		if resp != nil && resp.StatusCode >= http.StatusBadRequest {
			return nil, check(resp, nil)
		}
		return nil, err
	}
	conn.SetReadLimit(maxMessage)
	a := &Attachment{conn: conn}
	var m types.AttachMessage
	if kind, data, err := conn.Read(ctx); err != nil {
		_ = conn.CloseNow()
		return nil, fmt.Errorf("%w: %w", ErrCutOff, err)
	} else if kind != websocket.MessageText || json.Unmarshal(data, &m) != nil || m.Attached == nil {
		_ = conn.CloseNow()
		return nil, errors.New("the daemon's first message is not what it should be")
	}
	a.stop = context.AfterFunc(ctx, func() { _ = conn.CloseNow() }) // it may be closed
	a.Process, a.offset = m.Attached.Process, m.Attached.Offset
	return a, nil
}

// Next waits for output, a problem or the end. Its errors wrap ErrCutOff. Before
// the end it does not return io.EOF.
func (a *Attachment) Next(ctx context.Context) (AttachEvent, error) {
	kind, data, err := a.conn.Read(ctx)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return AttachEvent{}, fmt.Errorf("%w: %w", ErrCutOff, err)
	}
	if kind == websocket.MessageBinary {
		a.offset += int64(len(data))
		return AttachEvent{Output: data}, nil
	}
	var m types.AttachMessage
	if err := json.Unmarshal(data, &m); err != nil {
		return AttachEvent{}, fmt.Errorf("read message: %w", err)
	}
	ev := AttachEvent{Exit: m.Exit}
	if m.Problem != nil {
		ev.Problem = &Error{*m.Problem}
	}
	return ev, nil
}

// Offset is that of the byte of output that comes next.
func (a *Attachment) Offset() int64 { return a.offset }

// Write gives the process input. It waits while much of it is not read.
func (a *Attachment) Write(ctx context.Context, data []byte) error {
	for len(data) > 0 {
		n := min(len(data), maxInput)
		if err := a.conn.Write(ctx, websocket.MessageBinary, data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// CloseStdin ends the input after what was written.
func (a *Attachment) CloseStdin(ctx context.Context) error {
	return a.control(ctx, types.AttachControl{CloseStdin: new(true)})
}

// Resize changes the size of the process's terminal.
func (a *Attachment) Resize(ctx context.Context, size types.TerminalSize) error {
	return a.control(ctx, types.AttachControl{Resize: &size})
}

// Signal sends a signal, by name or number, to the process's group.
func (a *Attachment) Signal(ctx context.Context, signal string) error {
	var s any = signal
	return a.control(ctx, types.AttachControl{Signal: &s})
}

func (a *Attachment) control(ctx context.Context, c types.AttachControl) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return a.conn.Write(ctx, websocket.MessageText, data)
}

// Close detaches: the process goes on, and still gets the input that was written.
func (a *Attachment) Close() error {
	defer a.stop()
	return a.conn.Close(websocket.StatusNormalClosure, "")
}
