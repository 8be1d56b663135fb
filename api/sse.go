package api

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"cairn/api/types"
)

const (
	eventStream = "text/event-stream"
	// eventTime is how long a caller may take to accept one event.
	eventTime = time.Minute
)

// events writes server-sent events. Its methods may be called concurrently.
type events struct {
	mu  sync.Mutex
	w   http.ResponseWriter
	rc  *http.ResponseController
	buf bytes.Buffer
}

// newEvents begins the stream.
func newEvents(w http.ResponseWriter) (*events, error) {
	h := w.Header()
	h.Set("Content-Type", eventStream)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	e := &events{w: w, rc: http.NewResponseController(w)}
	if err := e.rc.Flush(); err != nil {
		return nil, fmt.Errorf("begin event stream: %w", err)
	}
	return e, nil
}

// send writes one event; id 0 means none.
func (e *events) send(id int64, kind string, data any) error {
	body, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.buf.Reset()
	if id > 0 {
		e.buf.WriteString("id: " + strconv.FormatInt(id, 10) + "\n")
	}
	e.buf.WriteString("event: " + kind + "\ndata: ")
	e.buf.Write(body)
	e.buf.WriteString("\n\n")
	return e.flush()
}

func (e *events) comment() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.buf.Reset()
	e.buf.WriteString(":\n\n")
	return e.flush()
}

func (e *events) flush() error {
	_ = e.rc.SetWriteDeadline(time.Now().Add(eventTime)) // a test's recorder can't
	if _, err := e.w.Write(e.buf.Bytes()); err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	if err := e.rc.Flush(); err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	return nil
}

// keepAlive sends a comment now and then, until the returned function is called
// or the caller is gone; then cancel is called.
func (e *events) keepAlive(every time.Duration, cancel context.CancelCauseFunc) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if err := e.comment(); err != nil {
					cancel(err)
					return
				}
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

// problem ends the stream with err.
func (s *server) problem(ctx context.Context, e *events, err error) {
	p := problemOf(ctx, err)
	if p.Status == http.StatusInternalServerError {
		s.log.ErrorContext(ctx, "stream failed", "err", err)
	}
	_ = e.send(0, "problem", p) // the caller may be gone
}

// encode gives bytes as text where they are that.
func encode(data []byte) (string, types.Encoding) {
	if utf8.Valid(data) {
		return string(data), types.Utf8
	}
	return base64.StdEncoding.EncodeToString(data), types.Base64
}
