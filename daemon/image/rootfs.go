package image

import (
	"bytes"
	"context"
	"io"
	"strings"

	"cairn/sandbox"
)

// tarBlock is the size of a tar's blocks. A whole one ends with a block of zeros
// at least, and readers of tars take one that is cut off before it for whole.
const tarBlock = 512

// ImportRootFS makes an image of one layer from the tar of a root file system,
// plain or compressed with gzip or zstd. The image's digest is that of the
// plain tar.
func (m *Manager) ImportRootFS(ctx context.Context, r io.Reader, name string) (sandbox.Image, error) {
	plain, err := decompress(capped(r, m.o.MaxBytes))
	if err != nil {
		return sandbox.Image{}, explain(ctx, err, "the root file system")
	}
	defer plain.Close()
	return m.importRootFS(ctx, plain, name)
}

func (m *Manager) importRootFS(ctx context.Context, plain io.Reader, name string) (sandbox.Image, error) {
	const what = "the root file system"
	if name == "" {
		return sandbox.Image{}, sandbox.Invalid("name", "a root file system needs a name")
	}
	if err := checkName(name); err != nil {
		return sandbox.Image{}, err
	}
	// What it is called by content is known when all of it has been unpacked: it
	// has a name of its own.
	id := "i" + strings.ToLower(strings.TrimPrefix(m.o.NewID("i"), "i_"))
	defer m.o.Pin(id)()
	tail := &tailReader{r: plain}
	in := &watchedReader{Reader: tail}
	done, err := m.o.Pool.ApplyTar(ctx, id, in, Limits{Bytes: m.o.MaxBytes, Entries: m.o.MaxEntries})
	if err != nil {
		if in.err != nil {
			err = in.err
		}
		return sandbox.Image{}, explain(ctx, err, what)
	}
	if tail.zeros < tarBlock {
		m.remove(ctx, id)
		return sandbox.Image{}, refused(nil, "%s lacks the end that a tar has: it was cut off", what)
	}
	// From here on imports of the same content go one by one.
	unlock, err := m.locks.lock(ctx, "image "+done.DiffID)
	if err != nil {
		m.remove(ctx, id)
		return sandbox.Image{}, err
	}
	defer unlock()
	same, unpin, err := m.sameRootFS(ctx, done.DiffID)
	if err != nil {
		m.remove(ctx, id)
		return sandbox.Image{}, err
	}
	defer unpin()
	img := sandbox.Image{Name: name, Digest: done.DiffID}
	if same != nil {
		m.remove(ctx, id)
		img.Layers, img.SizeBytes, img.Files = same.Layers, same.SizeBytes, same.Files
		return m.commit(ctx, img)
	}
	l, err := m.seal(ctx, id, done, &reporter{})
	if err != nil {
		return sandbox.Image{}, explain(ctx, err, what)
	}
	if err := m.o.Store.Update(ctx, func(tx sandbox.Tx) error { return tx.PutLayer(l) }); err != nil {
		m.remove(ctx, id)
		return sandbox.Image{}, err
	}
	img.Layers, img.SizeBytes, img.Files = []string{id}, l.Bytes, l.Files
	return m.commit(ctx, img)
}

// sameRootFS finds an image of this content; its layers are pinned until unpin.
func (m *Manager) sameRootFS(ctx context.Context, digest string) (same *sandbox.Image, unpin func(), err error) {
	find := func() (*sandbox.Image, error) {
		var page sandbox.Page
		for {
			l, err := m.List(ctx, page)
			if err != nil {
				return nil, err
			}
			for _, i := range l.Items {
				if i.Digest == digest && len(i.Layers) == 1 {
					return &i, nil
				}
			}
			if page.Cursor = l.NextCursor; page.Cursor == "" {
				return nil, nil
			}
		}
	}
	unpin = func() {}
	if same, err = find(); same == nil || err != nil {
		return nil, unpin, err
	}
	unpin = m.o.Pin(same.Layers...)
	// It may have gone before it was pinned.
	again, err := find()
	if err != nil || again == nil || again.Layers[0] != same.Layers[0] {
		unpin()
		return nil, func() {}, err
	}
	return again, unpin, nil
}

// tailReader counts the zeros that a stream ends with.
type tailReader struct {
	r     io.Reader
	zeros int64
}

func (t *tailReader) Read(b []byte) (int, error) {
	n, err := t.r.Read(b)
	trailing := n - len(bytes.TrimRight(b[:n], "\x00"))
	if trailing < n {
		t.zeros = 0
	}
	t.zeros += int64(trailing)
	return n, err
}
