package sandbox

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Checkpoints that nobody has used for a while get their memory compressed. That of the
// base of a lineage is compressed once, and what others share with it stays shared. Its
// plain form stays as long as a checkpoint that is not compressed needs it, so it has to
// pay: see kin.worth.

// kin are checkpoints, none compressed, that share memory.
type kin struct {
	base   Layer        // that they share
	isBase bool         // it may have been shared: it is a PagesBase
	due    []Checkpoint // to be compressed
	busy   bool         // there are others
}

// worth says whether compressing those that are due saves anything.
func (k kin) worth(packed string) bool {
	if packed != "" || !k.busy {
		return len(k.due) > 0
	}
	var own int64
	for _, cp := range k.due {
		if cp.Images != k.base.ID {
			own += cp.Sizes.ProcessBytes
		}
	}
	return own > k.base.Bytes
}

// compressLoop compresses the memory of checkpoints that are due.
func (s *Service) compressLoop(ctx context.Context) {
	const most, least, parts = time.Minute, 50 * time.Millisecond, 10
	timer := time.NewTicker(min(max(s.o.CompressAfter/parts, least), most))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if err := s.compressIdle(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("cannot compress the memory of checkpoints; it is tried again", "err", err)
		}
	}
}

func (s *Service) compressIdle(ctx context.Context) error {
	groups, err := s.kins(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, k := range groups {
		if err := s.compressKin(ctx, k); err != nil && !errors.Is(err, errPagesMoved) && CodeOf(err) != CodeNotFound {
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// kins gives the groups of checkpoints of which one is due at least.
func (s *Service) kins(ctx context.Context) (groups []*kin, err error) {
	err = s.o.Store.View(ctx, func(tx Tx) error {
		all, err := tx.AllCheckpoints()
		if err != nil {
			return err
		}
		taken, err := inSandboxes(tx)
		if err != nil {
			return err
		}
		by := map[string]*kin{}
		for _, cp := range all {
			if cp.Images == "" || cp.Compressed {
				continue
			}
			id := first(cp.PagesBase, cp.Images)
			k := by[id]
			if k == nil {
				k = &kin{isBase: cp.PagesBase != ""}
				by[id] = k
				groups = append(groups, k)
				if k.base, err = tx.Layer(id); CodeOf(err) == CodeNotFound {
					k.base.ID = id
				} else if err != nil {
					return err
				}
			}
			if s.due(cp) && !taken[cp.ID] {
				k.due = append(k.due, cp)
			} else {
				k.busy = true
			}
		}
		return nil
	})
	return slices.DeleteFunc(groups, func(k *kin) bool { return len(k.due) == 0 }), err
}

// inSandboxes gives the checkpoints that sandboxes stand on or sleep in.
func inSandboxes(tx Tx) (map[string]bool, error) {
	taken := map[string]bool{}
	err := eachSandbox(tx, SandboxFilter{}, func(sb Sandbox) error {
		taken[sb.Head], taken[sb.Asleep] = true, true
		return nil
	})
	return taken, err
}

// due says whether a checkpoint has not been used for so long that it is compressed.
func (s *Service) due(cp Checkpoint) bool {
	used := cp.DurableAt
	if cp.UsedAt.After(used) {
		used = cp.UsedAt
	}
	return cp.Durability == DurabilityDurable && s.o.Now().Sub(used) >= s.o.CompressAfter
}

// used records that a checkpoint's processes are brought back, so that it is not compressed
// soon.
func (s *Service) used(ctx context.Context, cp Checkpoint) {
	const exact = 4 // in parts of CompressAfter: not every use is worth a write
	now := s.o.Now()
	if s.o.CompressAfter == 0 || now.Sub(cp.UsedAt) < s.o.CompressAfter/exact {
		return
	}
	err := s.o.Store.Update(ctx, func(tx Tx) error {
		cp, err := tx.Checkpoint(cp.ID)
		if err != nil {
			return err
		}
		cp.UsedAt = now
		return tx.PutCheckpoint(cp)
	})
	if err != nil && CodeOf(err) != CodeNotFound {
		s.log.Warn("cannot record that a checkpoint was used", "checkpoint", cp.ID, "err", err)
	}
}

func (s *Service) compressKin(ctx context.Context, k *kin) error {
	pin := []string{k.base.ID}
	for _, cp := range k.due {
		pin = append(pin, cp.Images)
	}
	defer s.Pin(pin...)()
	if err := s.stillSound(ctx, k); err != nil {
		return err
	}
	packed, unpin, err := s.packedBase(ctx, k)
	if err != nil {
		return err
	}
	defer func() { unpin() }()
	if !k.worth(packed) {
		return nil
	}
	if packed == "" && k.isBase {
		if packed, unpin, err = s.packBase(ctx, k.base.ID); err != nil {
			return err
		}
	}
	for _, cp := range k.due {
		if cp.Images == k.base.ID && k.isBase {
			if k.busy {
				continue // its files stay for the others in any case
			}
			err = s.packed(ctx, cp, packed, packed)
		} else {
			err = s.compress(ctx, cp, packed)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stillSound looks again at the checkpoints that are due, once their layers are pinned, and
// at every byte of the images, so that no damage is taken for what was dumped. It is done
// only if they would be compressed.
func (s *Service) stillSound(ctx context.Context, k *kin) error {
	var same []Checkpoint
	for _, cp := range k.due {
		now, err := s.getCheckpoint(ctx, cp.ID)
		if err != nil && CodeOf(err) != CodeNotFound {
			return err
		}
		if err == nil && now.Images == cp.Images && now.PagesBase == cp.PagesBase {
			same = append(same, now)
		}
	}
	if k.due = same; len(same) == 0 || !k.worth(k.base.Packed) {
		k.due = nil
		return nil
	}
	layers := []Layer{k.base}
	for _, cp := range k.due {
		if cp.Images == k.base.ID {
			continue
		}
		l, err := s.recordedLayers(ctx, []string{cp.Images})
		if err != nil {
			return err
		}
		layers = append(layers, l...)
	}
	for _, l := range layers {
		if l.Digest == "" { // a base whose checkpoint was deleted before it was durable
			continue
		}
		err := s.o.Layers.Verify(ctx, l.ID, l.Digest)
		if CodeOf(err) == CodeCorrupt {
			for _, cp := range k.due { // those that are damaged are marked
				if _, marked := s.Verify(ctx, cp.ID); marked != nil {
					err = errors.Join(err, marked)
				}
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// packedBase gives the layer with the compressed base, if there is one, and keeps it.
func (s *Service) packedBase(ctx context.Context, k *kin) (id string, unpin func(), err error) {
	if k.base.Packed == "" {
		return "", func() {}, nil
	}
	unpin = s.Pin(k.base.Packed)
	err = s.o.Store.View(ctx, func(tx Tx) error { _, err := tx.Layer(k.base.Packed); return err })
	if err == nil {
		return k.base.Packed, unpin, nil
	}
	unpin()
	if CodeOf(err) == CodeNotFound {
		err = nil
	}
	return "", func() {}, err
}

// packBase compresses a base.
func (s *Service) packBase(ctx context.Context, id string) (packed string, unpin func(), err error) {
	err = s.pack(ctx, id, "", func(l Layer, release func()) error {
		err := s.o.Store.Update(ctx, func(tx Tx) error {
			base, err := tx.Layer(id)
			if err != nil {
				return err
			}
			base.Packed = l.ID
			return errors.Join(tx.PutLayer(l), tx.PutLayer(base))
		})
		packed, unpin = l.ID, release
		return err
	})
	if unpin == nil {
		unpin = func() {}
	}
	return packed, unpin, err
}

// compress compresses the images of a checkpoint that shares what it shares with the
// compressed layer base; "" if it shares nothing.
func (s *Service) compress(ctx context.Context, cp Checkpoint, base string) error {
	return s.pack(ctx, cp.Images, base, func(l Layer, release func()) error {
		defer release()
		if err := s.o.Store.Update(ctx, func(tx Tx) error { return tx.PutLayer(l) }); err != nil {
			return err
		}
		return s.packed(ctx, cp, l.ID, base)
	})
}

// pack makes a compressed layer, durable already, and gives it to done, pinned. It is removed
// if done fails.
func (s *Service) pack(ctx context.Context, id, base string, done func(l Layer, release func()) error) (err error) {
	dst := s.o.NewID("l")
	release := s.Pin(dst)
	var u undo
	defer func() {
		u.run(ctx)
		if err != nil {
			release()
		}
	}()
	if err := s.o.Layers.CreateUpper(ctx, dst, 0, 0); err != nil {
		return err
	}
	u.add(func(ctx context.Context) { s.remove(ctx, dst) })
	if err := s.o.Dumps.Compress(ctx, id, base, dst); err != nil {
		return err
	}
	l := Layer{ID: dst, CreatedAt: s.o.Now()}
	if l.Digest, l.Bytes, l.Files, err = s.o.Layers.Seal(ctx, dst); err != nil {
		return err
	}
	if err := s.reach("compress.made"); err != nil {
		return err
	}
	if err := done(l, release); err != nil {
		return err
	}
	u.release()
	return nil
}

// packed records that the images of a checkpoint are in another layer, compressed. The
// digests of the checkpoint stay: they are of what the images are when they are expanded.
func (s *Service) packed(ctx context.Context, cp Checkpoint, images, base string) error {
	bytes, err := s.o.Dumps.OwnBytes(ctx, images)
	if err != nil {
		return err
	}
	err = s.update(ctx, func(tx Tx) error {
		now, err := tx.Checkpoint(cp.ID)
		if err != nil {
			return err
		}
		taken, err := inSandboxes(tx)
		if err != nil {
			return err
		}
		if now.Images != cp.Images || now.Compressed || taken[cp.ID] || !s.due(now) {
			return errPagesMoved
		}
		now.Images, now.PagesBase, now.Compressed, now.Sizes.ProcessBytes = images, base, true, bytes
		return tx.PutCheckpoint(now)
	})
	if err != nil {
		return err
	}
	s.passed("compress.committed")
	s.log.Debug("memory compressed", "checkpoint", cp.ID, "was", cp.Sizes.ProcessBytes, "is", bytes)
	s.requestSweep()
	return nil
}
