package sandbox

import (
	"context"
	"errors"
	"sync"
)

// expansions are compressed images that are being made ready for a restore, or are ready
// and not yet recorded, by compressed layer.
type expansions struct {
	mu sync.Mutex
	m  map[string]*expansion
}

// expansion is one, for all that want it at the same time.
type expansion struct {
	users int
	done  chan struct{}
	layer string
	err   error // set when done is closed
	unpin func()
}

// restorable gives a checkpoint whose processes are about to be brought back as it has to
// be for that: if its images are compressed, with expanded ones, which are kept until release
// is called. They become the checkpoint's again, in the background: the next restore is fast.
func (s *Service) restorable(ctx context.Context, cp Checkpoint) (_ Checkpoint, release func(), err error) {
	s.used(ctx, cp)
	if !cp.Compressed {
		return cp, func() {}, nil
	}
	e := s.expansion(cp)
	release = sync.OnceFunc(func() { s.leave(cp.Images, e) })
	select {
	case <-e.done:
		err = e.err
	case <-ctx.Done():
		err = Wrap(context.Cause(ctx), CodeCancelled, "the caller went away")
	case <-s.background.Done():
		err = Wrap(errClosed, CodeUnavailable, "the daemon stops")
	}
	if err != nil {
		release()
		return Checkpoint{}, nil, err
	}
	cp.Images, cp.Compressed = e.layer, false
	return cp, release, nil
}

// expansion joins the one of a checkpoint's images, or starts it.
func (s *Service) expansion(cp Checkpoint) *expansion {
	s.expanding.mu.Lock()
	defer s.expanding.mu.Unlock()
	if e := s.expanding.m[cp.Images]; e != nil {
		e.users++
		return e
	}
	const alsoThis = 1 // what is started here
	e := &expansion{users: 1 + alsoThis, done: make(chan struct{}), layer: s.o.NewID("l")}
	e.unpin = s.Pin(e.layer, cp.Images)
	s.expanding.m[cp.Images] = e
	s.goDo(func(ctx context.Context) {
		defer s.leave(cp.Images, e)
		e.err = s.expand(ctx, cp, e.layer)
		close(e.done)
		if e.err == nil {
			if err := s.keepExpanded(ctx, cp, e.layer); err != nil && ctx.Err() == nil && !errors.Is(err, errPagesMoved) && CodeOf(err) != CodeNotFound {
				s.log.Warn("expanded memory cannot be kept; the next restore expands it again", "checkpoint", cp.ID, "err", err)
			}
		}
	})
	return e
}

func (s *Service) leave(images string, e *expansion) {
	s.expanding.mu.Lock()
	defer s.expanding.mu.Unlock()
	if e.users--; e.users > 0 {
		return
	}
	delete(s.expanding.m, images)
	e.unpin()
	s.requestSweep()
}

// expand makes a layer that can be restored from.
func (s *Service) expand(ctx context.Context, cp Checkpoint, dst string) error {
	if err := s.o.Layers.CreateUpper(ctx, dst, 0, 0); err != nil {
		return err
	}
	if err := s.o.Dumps.Expand(ctx, cp.Images, dst); err != nil {
		return err
	}
	if err := s.o.Dumps.Check(ctx, dst, cp.ImagesDigest); err != nil {
		return err
	}
	return s.reach("expand.made")
}

// keepExpanded makes a layer the images of its checkpoint.
func (s *Service) keepExpanded(ctx context.Context, cp Checkpoint, layer string) error {
	l := Layer{ID: layer, Packed: cp.PagesBase, CreatedAt: s.o.Now()}
	var err error
	if l.Digest, l.Bytes, l.Files, err = s.o.Layers.Seal(ctx, layer); err != nil {
		return err
	}
	err = s.update(ctx, func(tx Tx) error {
		now, err := tx.Checkpoint(cp.ID)
		if err != nil {
			return err
		}
		if now.Images != cp.Images {
			return errPagesMoved
		}
		now.Images, now.PagesBase, now.Compressed, now.UsedAt = layer, "", false, s.o.Now()
		if cp.PagesBase == cp.Images {
			now.PagesBase = layer // all that it has is in it
		}
		now.Sizes.ProcessBytes = l.Bytes
		if err := tx.PutLayer(l); err != nil {
			return err
		}
		return tx.PutCheckpoint(now)
	})
	if err != nil {
		return err
	}
	s.passed("expand.committed")
	return nil
}
