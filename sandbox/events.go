package sandbox

import (
	"context"
	"sync"
)

// broadcast wakes everyone who waits for the next change.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{}
}

func newBroadcast() *broadcast { return &broadcast{ch: make(chan struct{})} }

// next gives a channel that is closed at the next send.
func (b *broadcast) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ch
}

func (b *broadcast) send() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.ch)
	b.ch = make(chan struct{})
}

// update commits fn, then tells observers of the events it appended.
func (s *Service) update(ctx context.Context, fn func(Tx) error) error {
	if err := s.o.Store.Update(ctx, fn); err != nil {
		return err
	}
	s.wake.send()
	return nil
}

// Changed tells observers that someone else committed an event.
func (s *Service) Changed() { s.wake.send() }

// emit appends an event to the transaction.
func (s *Service) emit(tx Tx, kind, sandboxID, subject string, data map[string]any) error {
	_, err := tx.AppendEvent(Event{Time: s.o.Now(), Type: kind, Sandbox: sandboxID, Subject: subject, Data: data})
	return err
}

// Subscribe calls fn for every event after the given sequence number, first the
// recorded ones, then each new one, until fn fails, ctx is done, or the daemon
// stops. after < 0 means from now on.
func (s *Service) Subscribe(ctx context.Context, after int64, fn func(Event) error) error {
	const batch = 256
	if after < 0 {
		if err := s.o.Store.View(ctx, func(tx Tx) (err error) { after, err = tx.LastEvent(); return err }); err != nil {
			return err
		}
	}
	for {
		changed := s.wake.next()
		var events []Event
		if err := s.o.Store.View(ctx, func(tx Tx) (err error) { events, err = tx.Events(after, batch); return err }); err != nil {
			return err
		}
		for _, e := range events {
			if err := fn(e); err != nil {
				return err
			}
			after = e.Seq
		}
		if len(events) == batch {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.background.Done():
			return errClosed
		}
	}
}
