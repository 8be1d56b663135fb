package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/oklog/ulid/v2"

	"cairn/sandbox"
)

type contextKey int

const (
	keyRequestID contextKey = iota
	keyOperation
	keyRequest
	keyPrincipal
)

var requestIDPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// RequestID returns the id of the request that ctx belongs to, "" for none.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(keyRequestID).(string)
	return id
}

// LogHandler makes every record that is logged with a request's context carry
// its request_id.
func LogHandler(h slog.Handler) slog.Handler { return &logHandler{h} }

type logHandler struct{ slog.Handler }

func (h *logHandler) Handle(ctx context.Context, rec slog.Record) error {
	if id := RequestID(ctx); id != "" {
		rec = rec.Clone()
		rec.AddAttrs(slog.String("request_id", id))
	}
	return h.Handler.Handle(ctx, rec)
}

func (h *logHandler) WithAttrs(a []slog.Attr) slog.Handler {
	return &logHandler{h.Handler.WithAttrs(a)}
}

func (h *logHandler) WithGroup(name string) slog.Handler {
	return &logHandler{h.Handler.WithGroup(name)}
}

// operationOf returns the operation that r was routed to.
func operationOf(r *http.Request) *operation {
	op, _ := r.Context().Value(keyOperation).(*operation)
	return op
}

// requestOf returns the request that a generated handler's context belongs to.
func requestOf(ctx context.Context) *http.Request {
	r, _ := ctx.Value(keyRequest).(*http.Request)
	return r
}

// tracker notes what was answered.
type tracker struct {
	http.ResponseWriter
	status int
	bytes  int64
	err    error
}

func (t *tracker) WriteHeader(status int) {
	if t.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		t.status = status
	}
	t.ResponseWriter.WriteHeader(status)
}

func (t *tracker) Write(p []byte) (int, error) {
	if t.status == 0 {
		t.status = http.StatusOK
	}
	n, err := t.ResponseWriter.Write(p)
	t.bytes += int64(n)
	return n, err
}

// Unwrap serves http.ResponseController.
func (t *tracker) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// outermost gives every request an id, a log line, metrics, and an answer even
// when its handler panics.
func (s *server) outermost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		id := r.Header.Get("X-Request-Id")
		if !requestIDPattern.MatchString(id) {
			id = "req_" + ulid.Make().String()
		}
		r = r.WithContext(context.WithValue(r.Context(), keyRequestID, id))
		w.Header().Set("X-Request-Id", id)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		t := &tracker{ResponseWriter: w}
		s.metrics.inFlight.Inc()
		defer func() { //nolint:contextcheck // it has the request's
			s.metrics.inFlight.Dec()
			p := recover()
			aborted := p != nil
			if p != nil && p != http.ErrAbortHandler { //nolint:errorlint // the value itself is the signal
				t.err = fmt.Errorf("panic: %v", p)
				s.log.ErrorContext(r.Context(), "panic in a handler", "panic", p, "stack", string(debug.Stack()))
				if t.status == 0 {
					writeProblem(t, problemOf(r.Context(), sandbox.Errorf(sandbox.CodeInternal, "panic")))
					aborted = false
				}
			}
			s.record(r, t, time.Since(begin))
			if aborted {
				panic(http.ErrAbortHandler)
			}
		}()
		next.ServeHTTP(t, r)
	})
}

// record writes the access log and the metrics.
func (s *server) record(r *http.Request, t *tracker, took time.Duration) {
	route := chi.RouteContext(r.Context())
	pattern := "none"
	if route != nil && route.RoutePattern() != "" {
		pattern = route.RoutePattern()
	}
	s.metrics.observe(r.Method, pattern, t.status, took)
	level := slog.LevelInfo
	switch {
	case t.status == http.StatusInternalServerError:
		level = slog.LevelError
	case t.status < 400 && r.Method == http.MethodGet:
		level = slog.LevelDebug
	}
	if !s.log.Enabled(r.Context(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("method", r.Method), slog.String("path", clip(r.URL.Path)), slog.Int("status", t.status),
		slog.Float64("duration_ms", float64(took)/float64(time.Millisecond)), slog.Int64("bytes", t.bytes),
	}
	if t.err != nil {
		attrs = append(attrs, slog.String("err", t.err.Error()))
	}
	s.log.LogAttrs(r.Context(), level, "request", attrs...)
}

// routed runs once the route is known: it finds the operation, waits for a place
// among those that run, and bounds the time.
func (s *server) routed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op := s.operations[r.Method+" "+chi.RouteContext(r.Context()).RoutePattern()]
		if op == nil { // routes and contract are held together by a test
			s.fail(w, r, sandbox.Errorf(sandbox.CodeNotFound, "there is nothing at this address"))
			return
		}
		ctx := context.WithValue(r.Context(), keyOperation, op)
		leave, err := s.limits.enter(ctx, op)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		defer leave()
		if d := op.class.limit(); d > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, d)
			defer cancel()
		}
		r = r.WithContext(ctx)
		next.ServeHTTP(w, r)
	})
}

// withRequest lets generated handlers see the request itself.
func withRequest(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), keyRequest, r)))
	})
}
