package runtime

import (
	"context"
	"slices"
	"sync"
	"time"

	"cairn/sandbox"
)

const (
	firstRefillBackoff = 100 * time.Millisecond
	maxRefillBackoff   = 10 * time.Second
	// maxRefillDelay is the longest that steady demand keeps the pool from refilling.
	maxRefillDelay = time.Second
)

// pool holds blank containers that are ready.
type pool struct {
	r      *Runtime
	target map[sandbox.Network]int
	wake   chan struct{}

	mu     sync.Mutex
	ready  map[sandbox.Network][]*Container
	coming map[sandbox.Network]int // being started or adopted
	taken  time.Time               // when one was last asked for
	short  time.Time               // since when it is not full
	ended  bool
}

func newPool(r *Runtime) *pool {
	return &pool{
		r:      r,
		target: map[sandbox.Network]int{sandbox.NetworkNone: r.o.Warm.None, sandbox.NetworkEgress: r.o.Warm.Egress},
		wake:   make(chan struct{}, refillParallel),
		ready:  map[sandbox.Network][]*Container{},
		coming: map[sandbox.Network]int{},
	}
}

// begin starts to fill.
func (p *pool) begin() {
	if p.target[sandbox.NetworkNone]+p.target[sandbox.NetworkEgress] == 0 {
		return
	}
	for range refillParallel {
		p.r.background(p.fill)
	}
}

// end stops the filling and hands out what is ready.
func (p *pool) end() (ready []*Container) {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.target)
	p.ended = true
	for n, list := range p.ready {
		ready = append(ready, list...)
		delete(p.ready, n)
	}
	return ready
}

// take takes the oldest container that is alive; nil when there is none.
func (p *pool) take(n sandbox.Network) *Container {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.nudge()
	p.taken = time.Now()
	if p.short.IsZero() {
		p.short = p.taken
	}
	for len(p.ready[n]) > 0 {
		c := p.ready[n][0]
		p.ready[n] = slices.Delete(p.ready[n], 0, 1)
		if c.alive() {
			return c
		}
	}
	return nil
}

// put adds a container that was expected.
func (p *pool) put(c *Container) {
	n := c.rec.Network
	p.mu.Lock()
	p.coming[n]--
	if p.ended {
		p.mu.Unlock()
		p.r.background(func(ctx context.Context) { p.r.discard(ctx, c, "the pool has ended", nil) })
		return
	}
	p.ready[n] = append(p.ready[n], c)
	p.mu.Unlock()
	p.r.background(func(ctx context.Context) {
		select {
		case <-c.done:
		case <-p.r.run.Done():
			return
		}
		if p.drop(c) {
			p.r.discard(ctx, c, "it died in the pool", nil)
		}
	})
}

// drop takes a given container out; false when it is not in the pool.
func (p *pool) drop(c *Container) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := c.rec.Network
	i := slices.Index(p.ready[n], c)
	if i >= 0 {
		p.ready[n] = slices.Delete(p.ready[n], i, i+1)
	}
	return i >= 0
}

// expect announces a container, if there is room for it.
func (p *pool) expect(n sandbox.Network) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ready[n])+p.coming[n] >= p.target[n] {
		return false
	}
	p.coming[n]++
	return true
}

// missed takes an announcement back.
func (p *pool) missed(n sandbox.Network) {
	p.mu.Lock()
	p.coming[n]--
	p.mu.Unlock()
	p.nudge()
}

func (p *pool) count(n sandbox.Network) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ready[n])
}

// nudge lets the fillers look again.
func (p *pool) nudge() {
	for range refillParallel {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

// next announces the container that is missed most; "" when the pool is full.
func (p *pool) next() sandbox.Network {
	p.mu.Lock()
	defer p.mu.Unlock()
	var best sandbox.Network
	most := 0
	for _, n := range []sandbox.Network{sandbox.NetworkNone, sandbox.NetworkEgress} {
		if d := p.target[n] - len(p.ready[n]) - p.coming[n]; d > most {
			best, most = n, d
		}
	}
	if best == "" {
		p.short = time.Time{}
		return ""
	}
	p.coming[best]++
	return best
}

// fill starts containers while some are missed, until Close.
func (p *pool) fill(ctx context.Context) {
	backoff := firstRefillBackoff
	for {
		n := p.next()
		if n == "" {
			select {
			case <-p.wake:
				continue
			case <-p.r.run.Done():
				return
			}
		}
		if !p.yield() {
			p.missed(n)
			return
		}
		c, err := p.r.start(ctx, n, p.r.o.InitDir)
		<-p.r.cold
		if err == nil {
			p.put(c)
			backoff = firstRefillBackoff
			continue
		}
		p.missed(n)
		p.r.o.Logger.Warn("the pool cannot be filled; trying again", "error", err, "backoff_ms", backoff.Milliseconds())
		if !p.sleep(backoff) {
			return
		}
		backoff = min(2*backoff, maxRefillBackoff)
	}
}

// yield lets callers go first: it waits for a pause in demand, though not
// without end, and for a token. False means that the runtime is closing.
func (p *pool) yield() bool {
	for {
		p.mu.Lock()
		now := time.Now()
		wait := p.taken.Add(p.r.o.RefillDelay).Sub(now)
		if !p.short.IsZero() {
			wait = min(wait, p.short.Add(maxRefillDelay).Sub(now))
		}
		p.mu.Unlock()
		if wait <= 0 {
			break
		}
		if !p.sleep(wait) {
			return false
		}
	}
	select {
	case <-p.r.run.Done():
		return false
	case p.r.cold <- struct{}{}:
		return true
	}
}

// sleep waits; false means that the runtime is closing.
func (p *pool) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.r.run.Done():
		return false
	}
}
