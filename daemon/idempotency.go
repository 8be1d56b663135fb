package daemon

import (
	"context"
	"net/http"

	"cairn/api"
	"cairn/daemon/store"
)

// idempotency keeps the API's answers in the store.
type idempotency struct{ s *store.Store }

func (i idempotency) Reserve(ctx context.Context, scope, key, requestHash string) (*api.Record, bool, error) {
	rec, fresh, err := i.s.Reserve(ctx, scope, key, requestHash)
	if rec == nil || err != nil {
		return nil, fresh, err
	}
	return &api.Record{Hash: rec.RequestHash, Status: rec.Status, Header: rec.Header, Body: rec.Body}, fresh, nil
}

func (i idempotency) Complete(ctx context.Context, scope, key string, status int, header http.Header, body []byte) error {
	return i.s.Complete(ctx, scope, key, status, header, body)
}

func (i idempotency) Release(ctx context.Context, scope, key string) error {
	return i.s.Release(ctx, scope, key)
}
