package client

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"cairn/api/types"
)

// EventStream is the media type to [Accept] for [OpenStream].
const EventStream = "text/event-stream"

// maxEvent bounds one line of a stream, bytes.
const maxEvent = 16 << 20

// ServerEvent is one server-sent event.
type ServerEvent struct {
	ID   string
	Type string
	Data []byte
}

// Events reads a stream of server-sent events.
type Events struct {
	body io.ReadCloser
	scan *bufio.Scanner
}

// OpenStream begins to read an answer that is an event stream.
func OpenStream(resp *http.Response, err error) (*Events, error) {
	if err := check(resp, err); err != nil {
		return nil, err
	}
	if t := resp.Header.Get("Content-Type"); !strings.HasPrefix(t, EventStream) {
		resp.Body.Close()
		return nil, fmt.Errorf("the daemon answered with %q instead of an event stream", t)
	}
	e := &Events{body: resp.Body, scan: bufio.NewScanner(resp.Body)}
	e.scan.Buffer(make([]byte, 0, 64<<10), maxEvent)
	return e, nil
}

// Next returns the next event, io.EOF at the end of the stream, or, for an event
// "problem", the [*Error] that it holds.
func (e *Events) Next() (ServerEvent, error) {
	var ev ServerEvent
	for e.scan.Scan() {
		name, value, _ := strings.Cut(e.scan.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case e.scan.Text() == "":
			if ev.Type == "" && ev.Data == nil {
				continue
			}
			if ev.Type == "problem" {
				p := &Error{}
				if err := json.Unmarshal(ev.Data, &p.Problem); err != nil {
					return ev, fmt.Errorf("read event: %w", err)
				}
				return ev, p
			}
			return ev, nil
		case name == "id":
			ev.ID = value
		case name == "event":
			ev.Type = value
		case name == "data":
			ev.Data = append(ev.Data, value...)
		}
	}
	if err := e.scan.Err(); err != nil {
		return ev, fmt.Errorf("read event: %w", err)
	}
	return ev, io.EOF
}

// Close ends the stream.
func (e *Events) Close() error { return e.body.Close() }

// Follow reads a stream of a command's output to its end. started is called, if
// it is not nil and the stream says so, with the process; write with each piece.
// It returns the process as it ended.
func Follow(e *Events, started func(types.Process), write func(types.Stream, []byte) error) (types.Process, error) {
	var p types.Process
	for {
		ev, err := e.Next()
		if errors.Is(err, io.EOF) {
			return p, fmt.Errorf("the output ended before the command: %w", io.ErrUnexpectedEOF)
		}
		if err != nil {
			return p, err
		}
		switch ev.Type {
		case "started", "exit":
			if err := json.Unmarshal(ev.Data, &p); err != nil {
				return p, fmt.Errorf("read event: %w", err)
			}
			if ev.Type == "exit" {
				return p, nil
			}
			if started != nil {
				started(p)
			}
		case "output":
			var c types.OutputChunk
			if err := json.Unmarshal(ev.Data, &c); err != nil {
				return p, fmt.Errorf("read event: %w", err)
			}
			data := []byte(c.Data)
			if c.Encoding == types.Base64 {
				if data, err = base64.StdEncoding.DecodeString(c.Data); err != nil {
					return p, fmt.Errorf("read event: %w", err)
				}
			}
			if err := write(c.Stream, data); err != nil {
				return p, err
			}
		}
	}
}

// ExecStream runs a command in the foreground and gives its output as it comes.
// When ctx ends, the command is killed.
func (c *Client) ExecStream(ctx context.Context, id string, r types.Exec, started func(types.Process), write func(types.Stream, []byte) error) (types.Process, error) {
	e, err := OpenStream(c.Exec(ctx, id, nil, r, Accept(EventStream)))
	if err != nil {
		return types.Process{}, err
	}
	defer e.Close()
	return Follow(e, started, write)
}
