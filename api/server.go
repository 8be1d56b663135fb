package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"cairn/api/types"
	"cairn/sandbox"
)

// Options are what a server needs. Service, Images and Info must be given.
type Options struct {
	Service     Service
	Images      Images
	Info        func(ctx context.Context) (types.Info, error)
	Ready       func(ctx context.Context) error // nil: always ready
	Idempotency Idempotency                     // nil: keys are refused
	Tokens      []Token                         // for listeners other than a Unix socket; none: nobody is let in there
	Logger      *slog.Logger                    // nil: none
	Registerer  prometheus.Registerer           // nil: metrics are not registered
	Metrics     http.Handler                    // serves /metrics; nil: not found
	SpoolDir    string                          // where uploads are collected; "": the system's temporary directory
	Limits      Limits
}

type server struct {
	Options
	log        *slog.Logger
	operations map[string]*operation
	tokens     []tokenSum
	limits     *limiter
	metrics    *metrics
	maxUpload  int64
	heartbeat  time.Duration
}

// NewServer returns the handler of the whole API.
func NewServer(o Options) (http.Handler, error) {
	s, err := newServer(o)
	if err != nil {
		return nil, err
	}
	return s.router(), nil
}

func newServer(o Options) (*server, error) {
	if o.Service == nil || o.Images == nil || o.Info == nil {
		return nil, errors.New("api: Service, Images and Info are needed")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.SpoolDir == "" {
		o.SpoolDir = os.TempDir()
	}
	o.Limits = o.Limits.withDefaults()
	ops, err := loadSpec(Spec)
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	return &server{
		Options: o, log: slog.New(LogHandler(o.Logger.Handler())), operations: ops, tokens: sumTokens(o.Tokens),
		limits: newLimiter(o.Limits), metrics: m, maxUpload: o.Limits.UploadBytes, heartbeat: 15 * time.Second,
	}, nil
}

func (s *server) router() chi.Router {
	root := chi.NewRouter()
	root.Use(s.outermost, s.guard)
	root.NotFound(func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, sandbox.Errorf(sandbox.CodeNotFound, "there is nothing at this address"))
	})
	root.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", strings.Join(s.allowed(root, r), ", "))
		s.fail(w, r, &sandbox.Error{Code: codeMethodNotAllowed, Message: "this address does not take " + clip(r.Method)})
	})
	strict := NewStrictHandlerWithOptions(s, nil, StrictHTTPServerOptions{
		RequestErrorHandlerFunc:  s.badRequest,
		ResponseErrorHandlerFunc: s.fail,
	})
	HandlerWithOptions(strict, ChiServerOptions{
		BaseRouter:       root.With(s.routed, s.validate, s.idempotent, withRequest),
		ErrorHandlerFunc: s.badRequest,
	})
	return root
}

// badRequest answers what the generated decoding refuses although the contract's
// validation let it through.
func (s *server) badRequest(w http.ResponseWriter, r *http.Request, err error) {
	s.log.WarnContext(r.Context(), "request passed validation and cannot be decoded", "err", err)
	s.fail(w, r, sandbox.Wrap(err, sandbox.CodeInvalid, "the request cannot be decoded"))
}

func (s *server) allowed(root chi.Router, r *http.Request) []string {
	path := r.URL.RawPath
	if path == "" {
		path = r.URL.Path
	}
	var methods []string
	for _, m := range []string{http.MethodDelete, http.MethodGet, http.MethodPatch, http.MethodPost, http.MethodPut} {
		if root.Match(chi.NewRouteContext(), m, path) {
			methods = append(methods, m)
		}
	}
	slices.Sort(methods)
	return methods
}

// HTTPServer returns an http.Server for a handler of this package, with the time
// limits that keep slow callers from holding connections.
func HTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
