package image

import (
	"context"
	"errors"
	"io"
	"syscall"

	"cairn/overlay"
	"cairn/sandbox"
)

// FromOverlay makes the pool of layers fit for a Manager.
func FromOverlay(p *overlay.Pool) Pool { return overlayPool{p} }

type overlayPool struct{ p *overlay.Pool }

func (o overlayPool) ApplyTar(ctx context.Context, id string, r io.Reader, lim Limits) (Applied, error) {
	a, err := o.p.ApplyTar(ctx, id, r, overlay.Limits{Bytes: lim.Bytes, Entries: lim.Entries, Below: lim.Below})
	return Applied{DiffID: a.DiffID, Bytes: a.Bytes, Files: a.Files}, poolError(err)
}

func (o overlayPool) Seal(ctx context.Context, id string) (digest string, bytes, files int64, err error) {
	s, err := o.p.Seal(ctx, id)
	return s.Digest, s.Bytes, s.Files, poolError(err)
}

func (o overlayPool) Remove(ctx context.Context, id string) error {
	err := o.p.Remove(ctx, id)
	if errors.Is(err, overlay.ErrNotFound) {
		return nil
	}
	return poolError(err)
}

func poolError(err error) error {
	var bad *overlay.ArchiveError
	var over *overlay.LimitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &over):
		return sandbox.Wrap(err, sandbox.CodeTooLarge, "the image has more than %d %s", over.Max, over.What)
	case errors.As(err, &bad):
		return refused(err, "the entry %q of a layer is refused: %s", bad.Entry, bad.What)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return sandbox.Wrap(err, sandbox.CodeNoSpace, "the disk is full")
	default:
		return err
	}
}
