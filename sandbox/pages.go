package sandbox

import (
	"context"
	"errors"
	"slices"
)

// Memory is most of a checkpoint with processes, and most of it is the same from one
// checkpoint to the next. In the background, before it is made durable, the memory of each
// is compared with the base of its lineage: a layer that has all of its memory to itself.
// The new layer has what differs, and hard links to the base for the rest. So every layer is whole:
// removing a base harms nobody. It stays as long as a checkpoint names it, all the same, for
// the next ones to be compared with.

// Pages stores the memory of processes that were dumped in less room.
type Pages interface {
	// Compact makes the layer dst, which is new and empty, of a layer that was dumped, without
	// what need not be stored: pages of zeros, and those that the layer base has ("" for none).
	// dst shares files with base, but does not depend on it. CodeCorrupt, CodeNoSpace.
	Compact(ctx context.Context, layer, base, dst string) (Compacted, error)
	// Compress makes the layer dst, which is new and empty, of one that can be restored from.
	// base, "" for none, is the compressed form of what that shares memory with.
	Compress(ctx context.Context, layer, base, dst string) error
	// Expand makes the layer dst what a layer was before Compress. CodeCorrupt.
	Expand(ctx context.Context, layer, dst string) error
	// OwnBytes adds up the files of a layer that are not a base's.
	OwnBytes(ctx context.Context, layer string) (int64, error)
	// Size adds up the files of a layer: those that no other layer shares, and the others.
	Size(ctx context.Context, layer string) (own, shared int64, err error)
}

// Compacted is what Compact has made.
type Compacted struct {
	Digest string // of the new layer, to be given to Check
	Bytes  int64  // of files that are its own
	Based  bool   // it has files of the base; if not, it can be one
}

// lineage bounds how far up a base is looked for.
const lineage = 1000

// errPagesMoved says that a checkpoint is not what it was when its memory was looked at.
var errPagesMoved = errors.New("the checkpoint has changed meanwhile")

// compactPages stores the memory of a checkpoint that is only captured in less room, and
// first that of those before it: they may be its base. What can't be compacted stays as it
// was dumped. The error is that of ctx.
func (s *Service) compactPages(ctx context.Context, cp Checkpoint) error {
	if !compactable(cp) {
		return nil
	}
	unlock, err := s.durable.layers.lock(ctx, "pages", "compact", true)
	if err != nil {
		return err
	}
	defer unlock()
	todo := []string{cp.ID}
	err = s.ancestors(ctx, cp, func(up Checkpoint) bool {
		if !compactable(up) {
			return up.Images == "" // go on to the next with processes
		}
		todo = append(todo, up.ID)
		return true
	})
	if err != nil {
		return err
	}
	for _, id := range slices.Backward(todo) {
		err := s.compact(ctx, id)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil, CodeOf(err) == CodeNotFound, errors.Is(err, errPagesMoved):
		default:
			s.log.Warn("the memory of a checkpoint stays as it was dumped", "checkpoint", id, "err", err)
		}
	}
	return nil
}

// compactable says whether the images of a checkpoint are as they were dumped.
func compactable(cp Checkpoint) bool {
	return cp.Images != "" && cp.PagesBase == "" && cp.Durability == DurabilityCaptured
}

// ancestors calls visit for those that the checkpoint came from, the nearest first, until
// it says false.
func (s *Service) ancestors(ctx context.Context, cp Checkpoint, visit func(Checkpoint) bool) error {
	return s.o.Store.View(ctx, func(tx Tx) error {
		at := cp.Parent
		for range lineage {
			if at == "" {
				return nil
			}
			up, err := tx.Checkpoint(at)
			if CodeOf(err) == CodeNotFound {
				return nil
			}
			if err != nil {
				return err
			}
			if up.ImageID != cp.ImageID || !visit(up) {
				return nil
			}
			at = up.Parent
		}
		return nil
	})
}

// pagesBase gives the layer that the memory of a checkpoint is to be compared with, "" for
// none, and keeps it.
func (s *Service) pagesBase(ctx context.Context, cp Checkpoint) (base string, unpin func(), err error) {
	find := func() (base string, err error) {
		err = s.ancestors(ctx, cp, func(up Checkpoint) bool {
			sound := up.Durability == DurabilityCaptured || up.Durability == DurabilityDurable
			if up.Images != "" && sound && !up.Compressed {
				base = up.PagesBase
			}
			return up.Images == ""
		})
		return base, err
	}
	for {
		base, err := find()
		if err != nil || base == "" {
			return "", func() {}, err
		}
		unpin := s.Pin(base)
		again, err := find()
		if err == nil && again == base {
			return base, unpin, nil
		}
		unpin()
		if err != nil {
			return "", func() {}, err
		}
	}
}

// compact replaces the images of one checkpoint.
func (s *Service) compact(ctx context.Context, id string) error {
	cp, release, err := s.hold(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	if !compactable(cp) {
		return nil
	}
	base, unpin, err := s.pagesBase(ctx, cp)
	if err != nil {
		return err
	}
	defer unpin()
	dst := s.o.NewID("l")
	defer s.Pin(dst)()
	var u undo
	defer u.run(ctx)
	if err := s.o.Layers.CreateUpper(ctx, dst, 0, 0); err != nil {
		return err
	}
	u.add(func(ctx context.Context) { s.remove(ctx, dst) })
	made, err := s.o.Dumps.Compact(ctx, cp.Images, base, dst)
	if err != nil {
		return err
	}
	if err := s.reach("pages.compacted"); err != nil {
		return err
	}
	err = s.update(ctx, func(tx Tx) error {
		now, err := tx.Checkpoint(id)
		if err != nil {
			return err
		}
		if now.Images != cp.Images || !compactable(now) {
			return errPagesMoved
		}
		now.Images, now.ImagesDigest, now.Sizes.ProcessBytes = dst, made.Digest, made.Bytes
		if now.PagesBase = base; !made.Based {
			now.PagesBase = dst
		}
		if err := tx.PutLayer(Layer{ID: dst, CreatedAt: s.o.Now()}); err != nil {
			return err
		}
		return tx.PutCheckpoint(now)
	})
	if err != nil {
		return err
	}
	u.release()
	s.passed("pages.committed")
	s.log.Debug("memory compacted", "checkpoint", id, "was", cp.Sizes.ProcessBytes, "is", made.Bytes, "based", made.Based)
	s.requestSweep()
	return nil
}
