package sandbox

import (
	"context"
	"slices"
)

func equalStacks(a, b []string) bool { return slices.Equal(a, b) }

// squashIfDeep merges the checkpoint layers of a deep stack into one, so that no
// stack grows without bound. The files are hard links, so it costs directory
// entries. The checkpoints below keep their own layers. A running sandbox whose
// head this is stands on the merged layer from its next checkpoint on.
func (s *Service) squashIfDeep(ctx context.Context, id string) error {
	cp, err := s.getCheckpoint(ctx, id)
	if err != nil {
		return err
	}
	img, err := s.imageOf(ctx, cp.ImageID)
	if err != nil {
		return err
	}
	n := len(cp.Stack) - len(img.Layers)
	if n <= s.o.MaxDepth {
		return nil
	}
	defer s.Pin(cp.Stack...)()
	merged := s.o.NewID("l")
	defer s.Pin(merged)()
	if err := s.o.Layers.Squash(ctx, merged, cp.Stack[:n], cp.Stack[n:]); err != nil {
		return err
	}
	digest, bytes, files, err := s.o.Layers.Seal(ctx, merged)
	if err != nil {
		return err
	}
	if err := s.reach("squash.made"); err != nil {
		return err
	}
	// The record of the sandbox is read and written: no operation may be between.
	unlock, err := s.locks.lock(ctx, cp.SandboxID, "squash", true)
	if err != nil {
		return err
	}
	defer unlock()
	stack := slices.Concat([]string{merged}, cp.Stack[n:])
	layer := Layer{ID: merged, Digest: digest, Bytes: bytes, Files: files, Merges: cp.Stack[:n], CreatedAt: s.o.Now()}
	err = s.update(ctx, func(tx Tx) error {
		now, err := tx.Checkpoint(id)
		if err != nil {
			return err
		}
		if err := tx.PutLayer(layer); err != nil {
			return err
		}
		old := now.Stack
		now.Stack = stack
		if err := tx.PutCheckpoint(now); err != nil {
			return err
		}
		sb, err := tx.Sandbox(cp.SandboxID)
		if CodeOf(err) == CodeNotFound {
			return nil
		}
		if err != nil {
			return err
		}
		if suffix, ok := cutSuffix(sb.Below, old); ok {
			sb.Below = slices.Concat(suffix, stack)
			return tx.PutSandbox(sb)
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.passed("squash.committed")
	return nil
}

// cutSuffix gives what list has above suffix.
func cutSuffix(list, suffix []string) (above []string, ok bool) {
	n := len(list) - len(suffix)
	if n < 0 || !slices.Equal(list[n:], suffix) {
		return nil, false
	}
	return list[:n:n], true
}
