package sandbox

import (
	"context"
	"errors"
	"io"
	"slices"

	"cairn/sandbox/files"
)

// maxDiffBytes is the largest file whose text is compared.
const maxDiffBytes = 4 << 20

// Diff visits every path that differs between two checkpoints, in path order.
func (s *Service) Diff(ctx context.Context, from, to string, visit func(Change) error) error {
	a, releaseA, err := s.hold(ctx, from)
	if err != nil {
		return err
	}
	defer releaseA()
	b, releaseB, err := s.hold(ctx, to)
	if err != nil {
		return err
	}
	defer releaseB()
	return s.o.Layers.Diff(ctx, a.Stack, b.Stack, visit)
}

// DiffNow visits every path that differs between a checkpoint and a sandbox as
// it is. from "" means the sandbox's head, or its image before the first
// checkpoint. A running sandbox goes on meanwhile; pause it for one instant's view.
func (s *Service) DiffNow(ctx context.Context, idOrName, from string, visit func(Change) error) error {
	id, err := s.resolve(ctx, idOrName)
	if err != nil {
		return err
	}
	unlock, err := s.share(ctx, id, "diff")
	if err != nil {
		return err
	}
	defer unlock()
	sb, err := s.Sandbox(ctx, id)
	if err != nil {
		return err
	}
	base, release, err := s.stackOf(ctx, sb, from)
	if err != nil {
		return err
	}
	defer release()
	// The sandbox's own layers stay: it is shared until unlock.
	now := slices.Concat([]string{sb.Upper}, sb.Below)
	return s.o.Layers.Diff(ctx, base, now, visit)
}

// stackOf gives the stack of a checkpoint, or, for "", of the sandbox's head or
// image, and keeps it until release is called.
func (s *Service) stackOf(ctx context.Context, sb Sandbox, checkpoint string) (stack []string, release func(), err error) {
	if checkpoint == "" {
		checkpoint = sb.Head
	}
	if checkpoint == "" {
		img, err := s.imageOf(ctx, sb.ImageID) // stays while the sandbox is of it
		return img.Layers, func() {}, err
	}
	cp, release, err := s.hold(ctx, checkpoint)
	return cp.Stack, release, err
}

// FileDiff compares one file's text between two checkpoints; a file that one of
// them lacks counts as empty. CodeTooLarge above 4 MiB.
func (s *Service) FileDiff(ctx context.Context, from, to, path string) (diff string, binary bool, err error) {
	a, err := s.checkpointFile(ctx, from, path)
	if err != nil {
		return "", false, err
	}
	b, err := s.checkpointFile(ctx, to, path)
	if err != nil {
		return "", false, err
	}
	return textDiff(a, b, path)
}

// FileDiffNow is FileDiff between a checkpoint and a sandbox as it is.
func (s *Service) FileDiffNow(ctx context.Context, idOrName, from, path string) (diff string, binary bool, err error) {
	sb, err := s.Sandbox(ctx, idOrName)
	if err != nil {
		return "", false, err
	}
	stack, release, err := s.stackOf(ctx, sb, from)
	if err != nil {
		return "", false, err
	}
	defer release()
	t, err := s.o.Layers.View(ctx, stack)
	if err != nil {
		return "", false, err
	}
	defer closeQuietly(t)
	a, err := readSmall(ctx, files.New(t.Root(), files.Options{ReadOnly: true}), path)
	if err != nil {
		return "", false, err
	}
	root, done, err := s.Files(ctx, sb.ID, false)
	if err != nil {
		return "", false, err
	}
	defer done()
	b, err := readSmall(ctx, root, path)
	if err != nil {
		return "", false, err
	}
	return textDiff(a, b, path)
}

func (s *Service) checkpointFile(ctx context.Context, id, path string) ([]byte, error) {
	root, release, err := s.CheckpointFiles(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	return readSmall(ctx, root, path)
}

func readSmall(ctx context.Context, root *files.Root, path string) ([]byte, error) {
	f, err := root.Open(ctx, path)
	if errors.Is(err, files.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer closeQuietly(f)
	if f.Size() > maxDiffBytes {
		return nil, Errorf(CodeTooLarge, "%s has %d bytes; files up to %d are compared", path, f.Size(), maxDiffBytes)
	}
	return io.ReadAll(io.LimitReader(f, maxDiffBytes))
}

func textDiff(a, b []byte, path string) (diff string, binary bool, err error) {
	const contextLines = 3
	diff, binary = files.UnifiedDiff("a"+path, "b"+path, a, b, contextLines)
	return diff, binary, nil
}
