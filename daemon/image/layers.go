package image

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"

	"cairn/sandbox"
)

// layerID names the layer of the pool that holds a chain's top. The chain id is
// a digest: the first half of it is more than enough to be its own.
func layerID(chain digest.Digest) string {
	return "i" + strings.ToLower(chain.Encoded())[:32]
}

// unpacked is an image whose layers are in the pool.
type unpacked struct {
	layers []string // top first
	bytes  int64
	files  int64
}

// budget is what of an image's bounds is left.
type budget struct {
	bytes, entries int64
}

// unpack brings the layers of r into the pool, the lowest first. They are pinned
// until unpin is called, also on an error.
func (m *Manager) unpack(ctx context.Context, s *source, r *resolved, rep *reporter) (u unpacked, unpin func(), err error) {
	unpin = func() {}
	if len(r.layers) > m.o.MaxLayers {
		return u, unpin, tooLarge("%s has %d layers, more than %d", s.what, len(r.layers), m.o.MaxLayers)
	}
	var total int64
	for _, l := range r.layers {
		if total += l.Size; total > m.o.MaxBytes || total < 0 {
			return u, unpin, tooLarge("%s is larger than %d bytes", s.what, m.o.MaxBytes)
		}
	}
	ids := make([]string, len(r.chains))
	for i, c := range r.chains {
		ids[i] = layerID(c)
	}
	unpin = m.o.Pin(ids...)
	left := budget{bytes: m.o.MaxBytes, entries: m.o.MaxEntries}
	for i := range r.layers {
		l, err := m.layer(ctx, s, r, i, u.layers, left, rep)
		if err != nil {
			return u, unpin, explain(ctx, err, s.what)
		}
		u.bytes, u.files = u.bytes+l.Bytes, u.files+l.Files
		left.bytes, left.entries = left.bytes-l.Bytes, left.entries-l.Files
		if left.bytes < 0 || left.entries < 0 {
			return u, unpin, tooLarge("%s is larger than %d bytes or %d files", s.what, m.o.MaxBytes, m.o.MaxEntries)
		}
		u.layers = slices.Insert(u.layers, 0, ids[i])
	}
	return u, unpin, nil
}

// layer makes layer i of r unless it is there. Whoever wants the same layer
// meanwhile waits for it.
func (m *Manager) layer(ctx context.Context, s *source, r *resolved, i int, below []string, left budget, rep *reporter) (sandbox.Layer, error) {
	id := layerID(r.chains[i])
	unlock, err := m.locks.lock(ctx, "layer "+id)
	if err != nil {
		return sandbox.Layer{}, err
	}
	defer unlock()
	l, err := m.recorded(ctx, id)
	if err == nil || sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return l, err
	}
	blob := r.layers[i]
	if s.fetch != nil {
		if err := s.fetch(ctx, blob); err != nil {
			return l, err
		}
	}
	// The bounds count one of each at least: 0 would mean none.
	lim := Limits{Bytes: max(left.bytes, 1), Entries: max(left.entries, 1), Below: below}
	l, err = m.apply(ctx, s, id, blob, r.diffs[i], lim, rep)
	if err != nil {
		return l, err
	}
	return l, m.o.Store.Update(ctx, func(tx sandbox.Tx) error { return tx.PutLayer(l) })
}

// recorded is the layer as the metadata has it, CodeNotFound when it has not.
func (m *Manager) recorded(ctx context.Context, id string) (l sandbox.Layer, err error) {
	err = m.o.Store.View(ctx, func(tx sandbox.Tx) error {
		l, err = tx.Layer(id)
		return err
	})
	return l, err
}

// apply unpacks a blob from the content store into the new layer id.
func (m *Manager) apply(ctx context.Context, s *source, id string, blob descriptor, diff digest.Digest, lim Limits, rep *reporter) (sandbox.Layer, error) {
	ra, err := s.content.ReaderAt(ctx, blob)
	if err != nil {
		return sandbox.Layer{}, refused(err, "%s lacks its layer %s", s.what, blob.Digest)
	}
	defer ra.Close()
	in := rep.reading(content.NewReader(ra), "unpacking", blob.Digest.String(), blob.Size)
	plain, err := decompress(in)
	if err != nil {
		return sandbox.Layer{}, err
	}
	defer plain.Close()
	// What a crash left under this name was never recorded.
	if err := m.o.Pool.Remove(ctx, id); err != nil {
		return sandbox.Layer{}, err
	}
	watched := &watchedReader{Reader: plain}
	done, err := m.o.Pool.ApplyTar(ctx, id, watched, lim)
	if err != nil {
		if watched.err != nil {
			err = watched.err
		}
		return sandbox.Layer{}, err
	}
	if done.DiffID != diff.String() {
		m.remove(ctx, id)
		return sandbox.Layer{}, refused(nil, "the layer %s of %s unpacks to %s, but its configuration says %s", blob.Digest, s.what, done.DiffID, diff)
	}
	return m.seal(ctx, id, done, rep)
}

// seal puts a new layer on the disk for good.
func (m *Manager) seal(ctx context.Context, id string, done Applied, rep *reporter) (sandbox.Layer, error) {
	rep.say(Progress{Status: "sealing"})
	l := sandbox.Layer{ID: id, CreatedAt: m.o.Now()}
	var err error
	if l.Digest, l.Bytes, l.Files, err = m.o.Pool.Seal(ctx, id); err != nil {
		m.remove(ctx, id)
		return l, err
	}
	m.log.Debug("image layer made", slog.String("layer", id), slog.String("diff", done.DiffID), slog.Int64("bytes", l.Bytes), slog.Int64("files", l.Files))
	return l, nil
}

// remove takes away a layer that did not turn out well.
func (m *Manager) remove(ctx context.Context, id string) {
	if err := m.o.Pool.Remove(context.WithoutCancel(ctx), id); err != nil {
		m.log.Warn("unused image layer was not removed; the sweep does it", slog.String("layer", id), slog.Any("error", err))
	}
}
