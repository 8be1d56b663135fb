package image

import (
	"context"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"cairn/sandbox"
)

// PullRequest asks for an image of a registry.
type PullRequest struct {
	Ref                string
	Name               string // "" means Ref as it is written
	Username, Password string // "" for none; given to the registry of Ref only
	PlainHTTP          bool   // speak HTTP with that registry
	InsecureTLS        bool   // take any certificate of that registry
	Platform           string // as "linux/arm64/v8"; "" means the host's
}

// Pull brings an image in from a registry. progress may be nil; it is called
// from one goroutine at a time.
//
// Errors: CodeInvalid (the reference, or content that is damaged), CodeForbidden
// (the registry wants other credentials), CodeNotFound (no such image, or not
// for the platform), CodeUnsupported, CodeTooLarge, CodeUnavailable, CodeNoSpace.
func (m *Manager) Pull(ctx context.Context, r PullRequest, progress func(Progress)) (sandbox.Image, error) {
	full, host, err := parseRef(r.Ref)
	if err != nil {
		return sandbox.Image{}, err
	}
	name := r.Name
	if name == "" {
		name = r.Ref
	}
	if err := checkName(name); err != nil {
		return sandbox.Image{}, err
	}
	platform := platforms.DefaultSpec()
	if r.Platform != "" {
		if platform, err = platforms.Parse(r.Platform); err != nil {
			return sandbox.Image{}, sandbox.Invalid("platform", "%q is not a platform, such as linux/amd64", r.Platform)
		}
	}
	rep := &reporter{fn: progress}
	rep.say(Progress{Status: "resolving"})

	ctx, s, err := m.begin(ctx)
	if err != nil {
		return sandbox.Image{}, err
	}
	defer s.release()
	res, closeIdle := resolver(r, host)
	defer closeIdle()
	what := "image " + r.Ref
	_, desc, fetcher, err := resolve(ctx, res, full)
	if err != nil {
		return sandbox.Image{}, explain(ctx, err, what)
	}
	src := &source{content: s.content, what: what, fetch: func(ctx context.Context, d descriptor) error {
		return fetch(ctx, s.content, fetcher, d, rep)
	}}
	return m.add(ctx, src, desc, platform, name, rep)
}

// add brings in the image that d names: the end that pulls and imports share.
func (m *Manager) add(ctx context.Context, src *source, d descriptor, p ocispec.Platform, name string, rep *reporter) (sandbox.Image, error) {
	r, err := src.image(ctx, d, p)
	if err != nil {
		return sandbox.Image{}, err
	}
	// The same image asked for twice at once is brought in once.
	unlock, err := m.locks.lock(ctx, "image "+r.manifest.Digest.String())
	if err != nil {
		return sandbox.Image{}, err
	}
	defer unlock()
	u, unpin, err := m.unpack(ctx, src, r, rep)
	defer unpin()
	if err != nil {
		return sandbox.Image{}, err
	}
	img := described(r.config)
	img.Name, img.Digest = name, r.manifest.Digest.String()
	img.Layers, img.SizeBytes, img.Files = u.layers, u.bytes, u.files
	img, err = m.commit(ctx, img)
	if err == nil {
		rep.say(Progress{Status: "done"})
	}
	return img, err
}

// fetch brings one blob into the content store.
func fetch(ctx context.Context, cs content.Store, f remotes.Fetcher, d descriptor, rep *reporter) error {
	err := remotes.Fetch(ctx, cs, reporting{f, rep}, d)
	if errdefs.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// reporting is a fetcher that says how far it is.
type reporting struct {
	remotes.Fetcher
	rep *reporter
}

func (r reporting) Fetch(ctx context.Context, d descriptor) (io.ReadCloser, error) {
	rc, err := r.Fetcher.Fetch(ctx, d)
	if err != nil || r.rep.fn == nil {
		return rc, err
	}
	pr := r.rep.reading(rc, "downloading", d.Digest.String(), d.Size)
	if s, ok := rc.(io.Seeker); ok {
		return seekable{Reader: pr, Seeker: s, Closer: rc}, nil
	}
	return struct {
		io.Reader
		io.Closer
	}{pr, rc}, nil
}

// seekable keeps a stream resumable although it is reported on.
type seekable struct {
	io.Reader
	io.Seeker
	io.Closer
}
