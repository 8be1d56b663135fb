package image

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"cairn/sandbox"
)

type descriptor = ocispec.Descriptor

const (
	maxDocument = 8 << 20 // of an index, a manifest or a configuration, in bytes
	maxIndexes  = 4       // indexes within indexes
	maxEntries  = 1000    // of an index
)

// source is where documents and blobs come from. fetch brings a descriptor's
// content into the content store; nil when it is all there already.
type source struct {
	content content.Store
	fetch   func(ctx context.Context, d descriptor) error
	what    string // for messages: the reference, or "the archive"
}

// resolved is one platform's image, not yet unpacked.
type resolved struct {
	manifest descriptor
	layers   []descriptor // bottom first
	diffs    []digest.Digest
	chains   []digest.Digest
	config   ocispec.Image
}

func (s *source) document(ctx context.Context, d descriptor, v any) error {
	if d.Size > maxDocument {
		return tooLarge("a document of %s has %d bytes, more than %d", s.what, d.Size, maxDocument)
	}
	if err := d.Digest.Validate(); err != nil {
		return refused(err, "%s names content by a malformed digest", s.what)
	}
	if s.fetch != nil {
		if err := s.fetch(ctx, d); err != nil {
			return explain(ctx, err, s.what)
		}
	}
	b, err := content.ReadBlob(ctx, s.content, d)
	if err != nil {
		if s.fetch == nil {
			return refused(err, "%s lacks a document that it refers to", s.what)
		}
		return explain(ctx, err, s.what)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return refused(err, "a document of %s is not what it should be", s.what)
	}
	return nil
}

// image follows d down to the manifest for the platform, and reads it and
// its configuration.
func (s *source) image(ctx context.Context, d descriptor, p ocispec.Platform) (*resolved, error) {
	match := platforms.Only(p)
	for range maxIndexes {
		switch {
		case d.MediaType == images.MediaTypeDockerSchema1Manifest, d.MediaType == "application/vnd.docker.distribution.manifest.v1+json":
			return nil, sandbox.Errorf(sandbox.CodeUnsupported, "%s has the old manifest format of version 1; push it again with a newer tool", s.what)
		case images.IsIndexType(d.MediaType):
			var index ocispec.Index
			if err := s.document(ctx, d, &index); err != nil {
				return nil, err
			}
			next, err := s.pick(index, p, match)
			if err != nil {
				return nil, err
			}
			d = next
		case images.IsManifestType(d.MediaType):
			return s.manifest(ctx, d, match)
		default:
			return nil, sandbox.Errorf(sandbox.CodeUnsupported, "%s is not an image but %q", s.what, d.MediaType)
		}
	}
	return nil, refused(nil, "%s has too many indexes within indexes", s.what)
}

// pick chooses from an index what suits the platform best. Entries that name
// no platform are of unknown use and come last.
func (s *source) pick(index ocispec.Index, p ocispec.Platform, match platforms.MatchComparer) (descriptor, error) {
	if len(index.Manifests) > maxEntries {
		return descriptor{}, tooLarge("an index of %s has more than %d entries", s.what, maxEntries)
	}
	var fit []descriptor
	for _, d := range index.Manifests {
		if (images.IsManifestType(d.MediaType) || images.IsIndexType(d.MediaType)) && (d.Platform == nil || match.Match(*d.Platform)) {
			fit = append(fit, d)
		}
	}
	if len(fit) == 0 {
		return descriptor{}, sandbox.Errorf(sandbox.CodeNotFound, "%s has no image for the platform %s", s.what, platforms.Format(p))
	}
	slices.SortStableFunc(fit, func(a, b descriptor) int {
		switch {
		case a.Platform == nil && b.Platform == nil:
			return 0
		case a.Platform == nil:
			return 1
		case b.Platform == nil:
			return -1
		case match.Less(*a.Platform, *b.Platform):
			return -1
		case match.Less(*b.Platform, *a.Platform):
			return 1
		}
		return 0
	})
	return fit[0], nil
}

func (s *source) manifest(ctx context.Context, d descriptor, match platforms.MatchComparer) (*resolved, error) {
	// A schema 1 manifest, or an index, may come under a manifest's media type.
	var m struct {
		SchemaVersion int             `json:"schemaVersion"`
		Manifests     json.RawMessage `json:"manifests"`
		FSLayers      json.RawMessage `json:"fsLayers"`
		ocispec.Manifest
	}
	if err := s.document(ctx, d, &m); err != nil {
		return nil, err
	}
	if m.Manifests != nil || m.FSLayers != nil {
		return nil, refused(nil, "the manifest of %s is of another kind than it says", s.what)
	}
	if !images.IsConfigType(m.Config.MediaType) {
		return nil, sandbox.Errorf(sandbox.CodeUnsupported, "%s is not an image: its configuration is %q", s.what, m.Config.MediaType)
	}
	r := &resolved{manifest: d}
	if err := s.document(ctx, m.Config, &r.config); err != nil {
		return nil, err
	}
	if p := r.config.Platform; p.OS != "" && p.Architecture != "" && !match.Match(p) {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "%s is for the platform %s, not for this one", s.what, platforms.Format(p))
	}
	for _, l := range m.Layers {
		if err := l.Digest.Validate(); err != nil || l.Size < 0 {
			return nil, refused(err, "%s names a layer by a malformed digest or size", s.what)
		}
		switch l.MediaType {
		case images.MediaTypeImageLayerEncrypted, images.MediaTypeImageLayerGzipEncrypted:
			return nil, sandbox.Errorf(sandbox.CodeUnsupported, "%s has an encrypted layer", s.what)
		}
		if !images.IsLayerType(l.MediaType) {
			return nil, sandbox.Errorf(sandbox.CodeUnsupported, "%s has a layer of the unknown kind %q", s.what, l.MediaType)
		}
	}
	r.layers, r.diffs = m.Layers, r.config.RootFS.DiffIDs
	if len(r.layers) != len(r.diffs) {
		return nil, refused(nil, "%s has %d layers, but its configuration says %d", s.what, len(r.layers), len(r.diffs))
	}
	if len(r.layers) == 0 {
		return nil, refused(nil, "%s has no layers", s.what)
	}
	for _, id := range r.diffs {
		if err := id.Validate(); err != nil {
			return nil, refused(err, "the configuration of %s has a malformed layer digest", s.what)
		}
	}
	// ChainIDs works in place.
	r.chains = identity.ChainIDs(slices.Clone(r.diffs))
	return r, nil
}
