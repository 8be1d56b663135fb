package daemon

import (
	"context"
	"io"

	containerd "github.com/containerd/containerd/v2/client"

	"cairn/api"
	"cairn/daemon/image"
	"cairn/sandbox"
)

// images is an image.Manager as the API wants it.
type images struct{ m *image.Manager }

func (i images) Pull(ctx context.Context, r api.PullRequest, progress func(api.Progress)) (sandbox.Image, error) {
	req := image.PullRequest{Ref: r.Ref, Name: r.Name, Username: r.Username, Password: r.Password, PlainHTTP: r.PlainHTTP}
	if progress == nil {
		return i.m.Pull(ctx, req, nil)
	}
	return i.m.Pull(ctx, req, func(p image.Progress) {
		progress(api.Progress{Status: p.Status, Layer: p.Layer, DoneBytes: p.DoneBytes, TotalBytes: p.TotalBytes})
	})
}

func (i images) Import(ctx context.Context, r io.Reader, name string) (sandbox.Image, error) {
	return i.m.Import(ctx, r, name)
}

func (i images) Image(ctx context.Context, idOrName string) (sandbox.Image, error) {
	return i.m.Get(ctx, idOrName)
}

func (i images) Images(ctx context.Context, p sandbox.Page) (sandbox.List[sandbox.Image], error) {
	return i.m.List(ctx, p)
}

func (i images) DeleteImage(ctx context.Context, idOrName string) error {
	return i.m.Delete(ctx, idOrName)
}

// openImages connects the images to containerd's content store, the pool and the
// metadata.
func (d *Daemon) openImages(newID func(string) string) error {
	client, err := containerd.New(d.containerd, containerd.WithDefaultNamespace(namespace))
	if err != nil {
		return err
	}
	d.onClose("containerd client", closing(client))
	m, err := image.New(image.Options{
		Store: d.store, Pool: image.FromOverlay(d.pool), Pin: d.Service.Pin, NewID: newID, Changed: d.Service.Changed,
		Containerd: func(context.Context) (image.Containerd, error) { return client, nil }, // gRPC reconnects by itself
		Logger:     d.log, Namespace: namespace, MaxBytes: d.cfg.Images.MaxBytes, MaxEntries: d.cfg.Images.MaxEntries,
	})
	d.images = images{m}
	return err
}
