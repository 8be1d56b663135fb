package sandbox

import (
	"context"
	"errors"
	"maps"
	"slices"
)

// getCheckpoint gives one by id, its sizes as far as they are recorded.
func (s *Service) getCheckpoint(ctx context.Context, id string) (cp Checkpoint, err error) {
	err = s.o.Store.View(ctx, func(tx Tx) (err error) { cp, err = tx.Checkpoint(id); return err })
	return cp, err
}

// GetCheckpoint gives one by id, with its sizes counted; CodeNotFound.
func (s *Service) GetCheckpoint(ctx context.Context, id string) (Checkpoint, error) {
	cp, release, err := s.pinned(ctx, id)
	if err != nil {
		return Checkpoint{}, err
	}
	defer release()
	users := map[string]int{} // layer -> checkpoints and sandboxes that need it
	err = s.o.Store.View(ctx, func(tx Tx) error {
		all, err := tx.AllCheckpoints()
		if err != nil {
			return err
		}
		for _, c := range all {
			for _, l := range c.Layers() {
				users[l]++
			}
			if c.PagesBase != c.Images {
				users[c.PagesBase]++
			}
		}
		err = eachSandbox(tx, SandboxFilter{}, func(sb Sandbox) error {
			needs := slices.Concat(sb.Base, sb.Below)
			slices.Sort(needs)
			for _, l := range slices.Compact(needs) {
				users[l]++
			}
			return nil
		})
		if err != nil {
			return err
		}
		img, err := tx.Image(cp.ImageID)
		if err != nil {
			return err
		}
		for _, l := range img.Layers {
			users[l] += 2 // the image itself needs them
		}
		return nil
	})
	if err != nil {
		return Checkpoint{}, err
	}
	cp.Sizes.ExclusiveBytes, cp.Sizes.SharedBytes = 0, 0
	for _, id := range cp.Layers() {
		if id == cp.Images {
			own, shared, err := s.o.Dumps.Size(ctx, id)
			if err != nil {
				return Checkpoint{}, err
			}
			if users[id] > 1 {
				own, shared = 0, own+shared
			}
			cp.Sizes.ExclusiveBytes += own
			cp.Sizes.SharedBytes += shared
			continue
		}
		bytes, files, err := s.layerSize(ctx, id)
		if err != nil {
			return Checkpoint{}, err
		}
		if id == cp.Layer {
			cp.Sizes.LayerBytes, cp.Sizes.LayerFiles = bytes, files
		}
		if users[id] > 1 {
			cp.Sizes.SharedBytes += bytes
		} else {
			cp.Sizes.ExclusiveBytes += bytes
		}
	}
	return cp, nil
}

// layerSize takes the recorded size, or counts where there is none yet.
func (s *Service) layerSize(ctx context.Context, id string) (bytes, files int64, err error) {
	var l Layer
	err = s.o.Store.View(ctx, func(tx Tx) (err error) { l, err = tx.Layer(id); return err })
	if err == nil && l.Digest != "" {
		return l.Bytes, l.Files, nil
	}
	if err != nil && CodeOf(err) != CodeNotFound {
		return 0, 0, err
	}
	return s.o.Layers.Usage(ctx, id)
}

// Checkpoints lists them, newest first.
func (s *Service) Checkpoints(ctx context.Context, f CheckpointFilter, p Page) (l List[Checkpoint], err error) {
	if f.SandboxID != "" {
		if sb, err := s.Sandbox(ctx, f.SandboxID); err == nil {
			f.SandboxID = sb.ID // by name too; a deleted sandbox only by id
		}
	}
	err = s.o.Store.View(ctx, func(tx Tx) (err error) { l, err = tx.Checkpoints(f, p); return err })
	return l, err
}

// UpdateCheckpoint changes name, notes or labels.
func (s *Service) UpdateCheckpoint(ctx context.Context, id string, u CheckpointUpdate) (cp Checkpoint, err error) {
	if u.Name != nil && *u.Name != "" {
		if err := checkName("name", *u.Name); err != nil {
			return Checkpoint{}, err
		}
	}
	if u.Notes != nil {
		if err := checkNotes(*u.Notes); err != nil {
			return Checkpoint{}, err
		}
	}
	if err := checkLabels(u.Labels); err != nil {
		return Checkpoint{}, err
	}
	err = s.update(ctx, func(tx Tx) error {
		if cp, err = tx.Checkpoint(id); err != nil {
			return err
		}
		if u.Name != nil {
			cp.Name = *u.Name
		}
		if u.Notes != nil {
			cp.Notes = *u.Notes
		}
		if u.Labels != nil {
			cp.Labels = maps.Clone(u.Labels)
		}
		if err := tx.PutCheckpoint(cp); err != nil {
			return err
		}
		return s.emit(tx, "checkpoint.updated", cp.SandboxID, cp.ID, map[string]any{"name": cp.Name})
	})
	return cp, err
}

// DeleteCheckpoint removes a checkpoint. Its children are given its parent; the
// layers that they, or a sandbox, need stay until those are gone too. CodeInUse: a
// stopped sandbox would lose its processes.
func (s *Service) DeleteCheckpoint(ctx context.Context, id string) error {
	for {
		heads, unlock, err := s.lockHeads(ctx, id)
		if err != nil {
			return err
		}
		missed := false
		err = s.update(ctx, func(tx Tx) error {
			cp, err := tx.Checkpoint(id)
			if err != nil {
				return err
			}
			err = eachSandbox(tx, SandboxFilter{}, func(sb Sandbox) error {
				if sb.Asleep == id {
					return Errorf(CodeInUse, "the processes of sandbox %s are in checkpoint %s and nowhere else: resume it, restore it, or delete it first", sb.Name, id)
				}
				if sb.Head != id {
					return nil
				}
				missed = missed || !slices.Contains(heads, sb.ID)
				sb.Head, sb.HeadMoved = cp.Parent, true
				return tx.PutSandbox(sb)
			})
			if err != nil {
				return err
			}
			if missed {
				return errHeadMoved
			}
			if err := tx.DeleteCheckpoint(id); err != nil {
				return err
			}
			return s.emit(tx, "checkpoint.deleted", cp.SandboxID, cp.ID, map[string]any{"name": cp.Name})
		})
		unlock()
		if errors.Is(err, errHeadMoved) {
			continue
		}
		if err != nil {
			return err
		}
		s.passed("delete_checkpoint.committed")
		s.requestSweep()
		return nil
	}
}

var errHeadMoved = errors.New("another sandbox has this head now")

// lockHeads locks every sandbox whose head the checkpoint is, in the order of
// their ids, so that two callers cannot wait for each other.
func (s *Service) lockHeads(ctx context.Context, checkpoint string) (heads []string, unlock func(), err error) {
	err = s.o.Store.View(ctx, func(tx Tx) error {
		return eachSandbox(tx, SandboxFilter{}, func(sb Sandbox) error {
			if sb.Head == checkpoint {
				heads = append(heads, sb.ID)
			}
			return nil
		})
	})
	if err != nil {
		return nil, nil, err
	}
	slices.Sort(heads)
	var unlocks []func()
	unlock = func() {
		for _, u := range unlocks {
			u()
		}
	}
	for _, id := range heads {
		u, err := s.lock(ctx, id, "delete checkpoint")
		if err != nil {
			unlock()
			return nil, nil, err
		}
		unlocks = append(unlocks, u)
	}
	return heads, unlock, nil
}

// Timeline gives the tree of all checkpoints and every sandbox's head.
func (s *Service) Timeline(ctx context.Context) (t Timeline, err error) {
	err = s.o.Store.View(ctx, func(tx Tx) error {
		if t.Checkpoints, err = tx.AllCheckpoints(); err != nil {
			return err
		}
		return eachSandbox(tx, SandboxFilter{}, func(sb Sandbox) error {
			t.Heads = append(t.Heads, Head{SandboxID: sb.ID, Sandbox: sb.Name, State: sb.State, Checkpoint: sb.Head})
			return nil
		})
	})
	return t, err
}
