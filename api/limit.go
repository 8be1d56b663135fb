package api

import (
	"context"
	"sync/atomic"
	"time"

	"cairn/sandbox"
)

// Limits bounds how many requests run at once. A zero field means its default.
type Limits struct {
	Requests int           // of class quick and work; default 128
	Streams  int           // of class stream; default 4096
	Queue    int           // waiting, of each of both; default 20,000
	Wait     time.Duration // how long one waits at most; default 30 s
	// UploadBytes bounds the bodies that the contract leaves to the configuration;
	// default 16 GiB.
	UploadBytes int64
}

func (l Limits) withDefaults() Limits {
	if l.Requests <= 0 {
		l.Requests = 128
	}
	if l.Streams <= 0 {
		l.Streams = 4096
	}
	if l.Queue <= 0 {
		l.Queue = 20_000
	}
	if l.Wait <= 0 {
		l.Wait = 30 * time.Second
	}
	if l.UploadBytes <= 0 {
		l.UploadBytes = 16 << 30
	}
	return l
}

// limiter lets a bounded number of requests run, and a bounded number wait.
type limiter struct {
	short, long gate
	wait        time.Duration
}

type gate struct {
	places  chan struct{}
	waiting atomic.Int64
	queue   int64
}

func newLimiter(l Limits) *limiter {
	return &limiter{
		short: gate{places: make(chan struct{}, l.Requests), queue: int64(l.Queue)},
		long:  gate{places: make(chan struct{}, l.Streams), queue: int64(l.Queue)},
		wait:  l.Wait,
	}
}

// enter waits for a place; leave gives it back. The probes of the daemon's health
// always find one.
func (l *limiter) enter(ctx context.Context, op *operation) (leave func(), err error) {
	g := &l.short
	switch {
	case op.path == "/healthz" || op.path == "/readyz" || op.path == "/metrics":
		return func() {}, nil
	case op.class == classStream:
		g = &l.long
	}
	leave = func() { <-g.places }
	select {
	case g.places <- struct{}{}:
		return leave, nil
	default:
	}
	if g.waiting.Add(1) > g.queue {
		g.waiting.Add(-1)
		return nil, &sandbox.Error{Code: codeOverloaded, Message: "too many requests wait already"}
	}
	defer g.waiting.Add(-1)
	timer := time.NewTimer(l.wait)
	defer timer.Stop()
	select {
	case g.places <- struct{}{}:
		return leave, nil
	case <-timer.C:
		return nil, &sandbox.Error{Code: codeOverloaded, Message: "no place became free in time"}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
