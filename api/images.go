package api

import (
	"context"
	"net/http"

	"cairn/api/types"
	"cairn/sandbox"
)

func (s *server) ListImages(ctx context.Context, r ListImagesRequestObject) (ListImagesResponseObject, error) {
	l, err := s.Images.Images(ctx, page(r.Params.Cursor, r.Params.Limit))
	if err != nil {
		return nil, err
	}
	return ListImages200JSONResponse{Items: each(l.Items, imageOf), NextCursor: l.NextCursor}, nil
}

func (s *server) GetImage(ctx context.Context, r GetImageRequestObject) (GetImageResponseObject, error) {
	i, err := s.Images.Image(ctx, r.ImageId)
	if err != nil {
		return nil, err
	}
	return GetImage200JSONResponse(imageOf(i)), nil
}

func (s *server) DeleteImage(ctx context.Context, r DeleteImageRequestObject) (DeleteImageResponseObject, error) {
	if err := s.Images.DeleteImage(ctx, r.ImageId); err != nil {
		return nil, err
	}
	return DeleteImage204Response{}, nil
}

func (s *server) AddImage(ctx context.Context, r AddImageRequestObject) (AddImageResponseObject, error) {
	if r.JSONBody == nil {
		i, err := s.Images.Import(ctx, r.Body, value(r.Params.Name))
		if err != nil {
			return nil, err
		}
		return AddImage201JSONResponse(imageOf(i)), nil
	}
	if r.Params.Name != nil {
		return nil, sandbox.Invalid("name", "for a pull the name belongs in the body")
	}
	b := r.JSONBody
	pull := PullRequest{Ref: b.Ref, Name: value(b.Name), PlainHTTP: value(b.PlainHttp)}
	if b.Credentials != nil {
		pull.Username, pull.Password = b.Credentials.Username, b.Credentials.Password
	}
	if negotiate(requestOf(ctx).Header.Get("Accept"), "application/json", eventStream) != eventStream {
		i, err := s.Images.Pull(ctx, pull, nil)
		if err != nil {
			return nil, err
		}
		return AddImage201JSONResponse(imageOf(i)), nil
	}
	return respond(func(w http.ResponseWriter) error {
		e, err := newEvents(w)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer e.keepAlive(s.heartbeat, cancel)()
		i, err := s.Images.Pull(ctx, pull, func(p Progress) {
			err := e.send(0, "progress", types.PullProgress{Status: p.Status, Layer: optional(p.Layer), DoneBytes: p.DoneBytes, TotalBytes: p.TotalBytes})
			if err != nil {
				cancel(err)
			}
		})
		if err != nil {
			s.problem(ctx, e, err)
			return nil
		}
		return e.send(0, "image", imageOf(i))
	}), nil
}
