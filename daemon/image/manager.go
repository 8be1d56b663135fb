package image

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus" //nolint:depguard // containerd's log is nothing else

	"cairn/sandbox"
)

// Limits bound the tar of one layer. Below are the layers below, top first.
type Limits struct {
	Bytes   int64
	Entries int64
	Below   []string
}

// Applied is what a layer's tar turned out to hold.
type Applied struct {
	DiffID string // "sha256:..." of the tar
	Bytes  int64
	Files  int64
}

// Pool is where layers go. Its errors are *sandbox.Error: CodeTooLarge beyond
// the limits, CodeInvalid for a tar that is refused, CodeNoSpace.
type Pool interface {
	ApplyTar(ctx context.Context, id string, r io.Reader, lim Limits) (Applied, error)
	Seal(ctx context.Context, id string) (digest string, bytes, files int64, err error)
	Remove(ctx context.Context, id string) error // nil when it is not there
}

// Containerd is what is needed of a containerd client.
type Containerd interface {
	ContentStore() content.Store
	LeasesService() leases.Manager
}

// Options are a manager's needs and bounds. Those without a default are required.
type Options struct {
	Store      sandbox.Store
	Pool       Pool
	Containerd func(ctx context.Context) (Containerd, error) // asked for each time: it may reconnect
	Pin        func(ids ...string) (unpin func())            // keeps layers from being collected
	NewID      func(prefix string) string                    // "img" gives "img_01..."
	Now        func() time.Time                              // default time.Now
	Changed    func()                                        // default none; called after a commit that appended an event
	Logger     *slog.Logger                                  // default none
	Namespace  string                                        // containerd's, default "cairn"
	MaxBytes   int64                                         // of an image, compressed and unpacked each; default 64 GiB
	MaxEntries int64                                         // of an image; default 4,000,000
	MaxLayers  int                                           // of an image; default 127
}

// Manager keeps the images.
type Manager struct {
	o     Options
	log   *slog.Logger
	locks *keyLocks
}

// New makes a manager.
func New(o Options) (*Manager, error) {
	if o.Store == nil || o.Pool == nil || o.Containerd == nil || o.Pin == nil || o.NewID == nil {
		return nil, errors.New("image manager: Store, Pool, Containerd, Pin and NewID are needed")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Changed == nil {
		o.Changed = func() {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Namespace == "" {
		o.Namespace = "cairn"
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 64 << 30
	}
	if o.MaxEntries <= 0 {
		o.MaxEntries = 4_000_000
	}
	if o.MaxLayers <= 0 {
		o.MaxLayers = 127
	}
	return &Manager{o: o, log: o.Logger, locks: newKeyLocks()}, nil
}

// Get finds an image by id or name.
func (m *Manager) Get(ctx context.Context, idOrName string) (img sandbox.Image, err error) {
	err = m.o.Store.View(ctx, func(tx sandbox.Tx) error {
		img, err = tx.Image(idOrName)
		return err
	})
	return img, err
}

// List lists images, newest first.
func (m *Manager) List(ctx context.Context, p sandbox.Page) (l sandbox.List[sandbox.Image], err error) {
	err = m.o.Store.View(ctx, func(tx sandbox.Tx) error {
		l, err = tx.Images(p)
		return err
	})
	return l, err
}

// Delete deletes an image; CodeInUse while a sandbox or a checkpoint is of it.
// Its layers go when the pool is next swept, but for those that are needed.
func (m *Manager) Delete(ctx context.Context, idOrName string) error {
	err := m.o.Store.Update(ctx, func(tx sandbox.Tx) error {
		img, err := tx.Image(idOrName)
		if err != nil {
			return err
		}
		if err := tx.DeleteImage(img.ID); err != nil {
			return err
		}
		return m.emit(tx, "image.deleted", img)
	})
	if err == nil {
		m.o.Changed()
	}
	return err
}

func (m *Manager) emit(tx sandbox.Tx, kind string, img sandbox.Image) error {
	_, err := tx.AppendEvent(sandbox.Event{
		Time: m.o.Now(), Type: kind, Subject: img.ID,
		Data: map[string]any{"name": img.Name, "digest": img.Digest},
	})
	return err
}

// session is the use of containerd by one pull or import.
type session struct {
	content content.Store
	release func()
}

// silent keeps the client's own log off the daemon's: what matters of it is in
// the errors that it returns.
func silent() *log.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

// leaseTime is when containerd drops the blobs of a daemon that was killed.
const leaseTime = 24 * time.Hour

// begin takes a lease: what ctx then adds to the content store stays until release.
func (m *Manager) begin(ctx context.Context) (context.Context, *session, error) {
	ctx = log.WithLogger(namespaces.WithNamespace(ctx, m.o.Namespace), silent())
	c, err := m.o.Containerd(ctx)
	if err != nil {
		return nil, nil, away(ctx, err)
	}
	manager := c.LeasesService()
	l, err := manager.Create(ctx, leases.WithRandomID(), leases.WithExpiration(leaseTime))
	if err != nil {
		return nil, nil, away(ctx, err)
	}
	release := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if err := manager.Delete(ctx, l, leases.SynchronousDelete); err != nil {
			m.log.Warn("lease of an image's blobs was not deleted; it expires", slog.String("lease", l.ID), slog.Any("error", err))
		}
	}
	return leases.WithLease(ctx, l.ID), &session{content: c.ContentStore(), release: release}, nil
}
