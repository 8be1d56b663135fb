package stem

import (
	"context"
	"sync"
)

// gate counts the requests that are open and can keep new ones out.
type gate struct {
	mu      sync.Mutex
	open    int
	shut    bool
	changed chan struct{} // closed and replaced when open or shut falls
}

func newGate() *gate { return &gate{changed: make(chan struct{})} }

// enter lets a request through once the gate is not shut.
func (g *gate) enter(ctx context.Context) error {
	return g.wait(ctx, func() bool {
		if g.shut {
			return false
		}
		g.open++
		return true
	})
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
	g.wake()
}

func (g *gate) wake() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// wait calls try, with the lock held, until it reports success or ctx is done.
func (g *gate) wait(ctx context.Context, try func() bool) error {
	for {
		g.mu.Lock()
		done, changed := try(), g.changed
		g.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Quiet returns once this client has no connection to the stem, and keeps requests waiting
// until release is called: CRIU can't dump a stem that somebody outside is connected to.
// Requests made by the caller meanwhile wait too. It waits for a former Quiet's release, for
// up to Options.Timeout for the requests that are under way, and no longer than ctx, whose
// cause it returns.
func (c *Client) Quiet(ctx context.Context) (release func(), err error) {
	g := c.gate
	err = g.wait(ctx, func() bool {
		if g.shut {
			return false
		}
		g.shut = true
		return true
	})
	if err != nil {
		return nil, err
	}
	release = sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.shut = false
		g.wake()
	})
	if err := g.wait(ctx, func() bool { return g.open == 0 }); err != nil {
		release()
		return nil, err
	}
	return release, nil
}
