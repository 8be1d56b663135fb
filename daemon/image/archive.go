package image

import (
	"bufio"
	"context"
	"errors"
	"io"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"cairn/sandbox"
)

const maxBlobs = 10_000 // files in an archive

// Import brings in what r holds, plain or compressed with gzip or zstd: an image
// archive as ImportArchive takes it, or a root file system as ImportRootFS does.
func (m *Manager) Import(ctx context.Context, r io.Reader, name string) (sandbox.Image, error) {
	plain, err := decompress(capped(r, m.o.MaxBytes))
	if err != nil {
		return sandbox.Image{}, explain(ctx, err, "the upload")
	}
	defer plain.Close()
	br := bufio.NewReaderSize(plain, peekBytes)
	head, err := br.Peek(peekBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		if len(head) == 0 {
			return sandbox.Image{}, explain(ctx, damagedStream(err), "the upload")
		}
	}
	k, err := detect(head)
	if err != nil {
		return sandbox.Image{}, err
	}
	if k == kindArchive {
		return m.importArchive(ctx, br, name)
	}
	return m.importRootFS(ctx, br, name)
}

// ImportArchive brings in the image of a `docker save` or OCI layout tar. It
// is called name, or as the archive calls it. An archive of several images is
// refused.
func (m *Manager) ImportArchive(ctx context.Context, r io.Reader, name string) (sandbox.Image, error) {
	plain, err := decompress(capped(r, m.o.MaxBytes))
	if err != nil {
		return sandbox.Image{}, explain(ctx, err, "the archive")
	}
	defer plain.Close()
	return m.importArchive(ctx, plain, name)
}

func (m *Manager) importArchive(ctx context.Context, plain io.Reader, name string) (sandbox.Image, error) {
	const what = "the archive"
	if name != "" {
		if err := checkName(name); err != nil {
			return sandbox.Image{}, err
		}
	}
	ctx, s, err := m.begin(ctx)
	if err != nil {
		return sandbox.Image{}, err
	}
	defer s.release()
	store := &countingStore{Store: s.content}
	store.left.Store(maxBlobs)
	in := &watchedReader{Reader: capped(plain, m.o.MaxBytes)}
	root, err := archive.ImportIndex(ctx, store, in)
	if err != nil {
		// The importer's own words are about its insides, but for what our reader said.
		if in.err != nil {
			err = in.err
		} else if !unexpected(err) {
			err = refused(err, "it is not an image archive as docker save or an OCI tool writes it, or it is incomplete")
		}
		return sandbox.Image{}, explain(ctx, err, what)
	}
	src := &source{content: s.content, what: what}
	d, found, err := src.only(ctx, root)
	if err != nil {
		return sandbox.Image{}, err
	}
	if name == "" {
		name = found
	}
	if name == "" {
		return sandbox.Image{}, sandbox.Invalid("name", "the archive does not say what its image is called: give it a name")
	}
	if err := checkName(name); err != nil {
		return sandbox.Image{}, err
	}
	return m.add(ctx, src, d, platforms.DefaultSpec(), name, &reporter{})
}

// only is the one image of an archive and the name it has there.
func (s *source) only(ctx context.Context, root descriptor) (d descriptor, name string, err error) {
	var index ocispec.Index
	if err := s.document(ctx, root, &index); err != nil {
		return d, "", err
	}
	if len(index.Manifests) > maxEntries {
		return d, "", tooLarge("the archive's index has more than %d entries", maxEntries)
	}
	byName := map[string][]descriptor{}
	distinct := map[digest.Digest]bool{}
	for _, c := range index.Manifests {
		if !images.IsManifestType(c.MediaType) && !images.IsIndexType(c.MediaType) {
			continue
		}
		n := archiveName(c)
		byName[n] = append(byName[n], c)
		distinct[c.Digest] = true
		if name == "" {
			name = n
		}
	}
	switch {
	case len(distinct) == 0:
		return d, "", refused(nil, "the archive holds no image")
	case len(distinct) == 1, len(byName) == 1:
		// One image under several names, or one for several platforms.
		d = root
		d.MediaType = ocispec.MediaTypeImageIndex
		return d, name, nil
	default:
		return d, "", refused(nil, "the archive holds %d images; import them one by one", len(distinct))
	}
}

// archiveName is what an archive calls an image, "" for nothing of use.
func archiveName(d descriptor) string {
	n := d.Annotations[images.AnnotationImageName]
	if n == "" {
		// Often a mere tag, which is no name.
		n = d.Annotations[ocispec.AnnotationRefName]
		if named, err := reference.ParseNormalizedNamed(n); err != nil || reference.IsNameOnly(named) {
			return ""
		}
	}
	named, err := reference.ParseNormalizedNamed(n)
	if err != nil {
		return ""
	}
	return reference.FamiliarString(named)
}

// unexpected says whether an importer's error is not about the archive.
func unexpected(err error) bool {
	var e *sandbox.Error
	return errors.As(err, &e) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// watchedReader remembers the error that a stream ended with: an importer may
// dress it up.
type watchedReader struct {
	io.Reader
	err error
}

func (w *watchedReader) Read(b []byte) (int, error) {
	n, err := w.Reader.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		w.err = damagedStream(err)
		return n, w.err
	}
	return n, err
}

// damagedStream is the error for a stream that cannot be read to its end.
func damagedStream(err error) error {
	if unexpected(err) {
		return err
	}
	return refused(err, "the data ends early or is damaged")
}

// countingStore refuses an archive of too many files.
type countingStore struct {
	content.Store
	left atomic.Int64
}

func (c *countingStore) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	if c.left.Add(-1) < 0 {
		return nil, tooLarge("the archive holds more than %d files", maxBlobs)
	}
	return c.Store.Writer(ctx, opts...)
}
