package sandbox

import (
	"context"
	"slices"
	"sync"
	"time"
)

// pins are layers that operations under way make or use, and layers that the
// sweep is about to remove. A layer is never both.
type pins struct {
	mu     sync.Mutex
	n      map[string]int
	doomed map[string]bool
	spared chan struct{} // closed when doomed is cleared
	missed bool          // a sweep left something alone because it was pinned
}

func newPins() *pins { return &pins{n: map[string]int{}, doomed: map[string]bool{}} }

// Pin keeps the layers from being swept until unpin is called. Pin a new layer
// before it is created, and unpin it after the commit that names it. Pin one that
// is there before looking whether it is still recorded: when Pin returns, it is
// either gone, record and all, or it stays.
func (s *Service) Pin(ids ...string) (unpin func()) {
	p := s.pins
	p.mu.Lock()
	for slices.ContainsFunc(ids, func(id string) bool { return p.doomed[id] }) {
		spared := p.spared
		p.mu.Unlock()
		<-spared
		p.mu.Lock()
	}
	defer p.mu.Unlock()
	for _, id := range ids {
		p.n[id]++
	}
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, id := range ids {
			if p.n[id]--; p.n[id] == 0 {
				delete(p.n, id)
			}
		}
		if p.missed {
			p.missed = false
			const gather = time.Second // what else is let go
			time.AfterFunc(gather, s.requestSweep)
		}
	})
}

// doom marks those of the layers that are not pinned; free takes the marks away.
func (p *pins) doom(ids []string) (marked []string, free func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spared = make(chan struct{})
	for _, id := range ids {
		if p.n[id] > 0 {
			p.missed = true
			continue
		}
		p.doomed[id] = true
		marked = append(marked, id)
	}
	return marked, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		clear(p.doomed)
		close(p.spared)
	}
}

// Sweep removes every layer that nothing needs, and says how many.
//
// It is safe beside running operations: a layer is first marked, which waits for
// nobody and keeps it from being pinned, and only then is the metadata asked.
// So a layer that an operation took before is pinned, or named by its commit.
func (s *Service) Sweep(ctx context.Context) (removed int, err error) {
	s.sweeping.Lock()
	defer s.sweeping.Unlock()
	unused, err := s.unusedLayers(ctx)
	if err != nil || len(unused) == 0 {
		return 0, err
	}
	marked, free := s.pins.doom(unused)
	defer free()
	var used map[string]bool
	if err := s.o.Store.View(ctx, func(tx Tx) (err error) { used, err = tx.LayersInUse(); return err }); err != nil {
		return 0, err
	}
	for _, id := range marked {
		if used[id] {
			continue
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
		if err := s.reach("sweep.removed"); err != nil {
			return removed, err
		}
		if err := s.o.Layers.Remove(ctx, id); err != nil {
			return removed, err
		}
		removed++
	}
	return removed, nil
}

// unusedLayers gives what is in the pool and named by nothing, to be looked at again.
func (s *Service) unusedLayers(ctx context.Context) (unused []string, err error) {
	ids, err := s.o.Layers.List()
	if err != nil {
		return nil, err
	}
	var used map[string]bool
	if err := s.o.Store.View(ctx, func(tx Tx) (err error) { used, err = tx.LayersInUse(); return err }); err != nil {
		return nil, err
	}
	for _, id := range ids {
		if !used[id] {
			unused = append(unused, id)
		}
	}
	return unused, nil
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
