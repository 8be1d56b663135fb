package sandbox

import (
	"context"
	"sync"
	"time"
)

// pins are layers that operations under way are making, and that no metadata
// names yet.
type pins struct {
	mu sync.Mutex
	n  map[string]int
}

func newPins() *pins { return &pins{n: map[string]int{}} }

// Pin keeps the layers from being swept until unpin is called. Pin before a
// layer is created; unpin after the commit that names it.
func (s *Service) Pin(ids ...string) (unpin func()) {
	s.pins.mu.Lock()
	defer s.pins.mu.Unlock()
	for _, id := range ids {
		s.pins.n[id]++
	}
	return sync.OnceFunc(func() {
		s.pins.mu.Lock()
		defer s.pins.mu.Unlock()
		for _, id := range ids {
			if s.pins.n[id]--; s.pins.n[id] == 0 {
				delete(s.pins.n, id)
			}
		}
	})
}

func (p *pins) held() map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := make(map[string]bool, len(p.n))
	for id := range p.n {
		m[id] = true
	}
	return m
}

// Sweep removes every layer that nothing needs, and says how many.
//
// The order makes it safe beside running operations: the pool is listed first,
// then the pins are read, then the metadata. A listed layer was pinned before it
// existed, so it is either still pinned, or its commit is already visible.
func (s *Service) Sweep(ctx context.Context) (removed int, err error) {
	ids, err := s.o.Layers.List()
	if err != nil {
		return 0, err
	}
	pinned := s.pins.held()
	var used map[string]bool
	if err := s.o.Store.View(ctx, func(tx Tx) (err error) { used, err = tx.LayersInUse(); return err }); err != nil {
		return 0, err
	}
	for _, id := range ids {
		if pinned[id] || used[id] {
			continue
		}
		if err := s.o.Layers.Remove(ctx, id); err != nil {
			return removed, err
		}
		if err := s.reach("sweep.removed"); err != nil {
			return removed, err
		}
		err := s.o.Store.Update(ctx, func(tx Tx) error {
			err := tx.DeleteLayer(id)
			if CodeOf(err) == CodeNotFound {
				return nil
			}
			return err
		})
		if err != nil {
			return removed, err
		}
		removed++
	}
	return removed, nil
}

// requestSweep has the background sweep soon.
func (s *Service) requestSweep() {
	select {
	case s.sweepSoon <- struct{}{}:
	default:
	}
}

// sweepLoop sweeps when asked to, and now and then.
func (s *Service) sweepLoop(ctx context.Context) {
	const period = time.Minute
	timer := time.NewTicker(period)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-s.sweepSoon:
		}
		if n, err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("sweep failed; it is tried again", "err", err)
		} else if n > 0 {
			s.log.Debug("swept layers", "removed", n)
		}
	}
}
