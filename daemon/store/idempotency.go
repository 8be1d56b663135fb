package store

import (
	"context"
	"encoding/json"
	"net/http"

	"cairn/sandbox"
)

// IdemRecord is what is known of a request that carried an idempotency key.
type IdemRecord struct {
	RequestHash string // of the request that reserved the key; another one may not use it
	Status      int    // 0 while that request still runs
	Header      http.Header
	Body        []byte
}

// Reserve takes the key for a request. fresh is true when it was free: the
// caller then does the work and ends with Complete, or with Release when
// the same request may be tried again. Otherwise rec says what became of the key.
func (s *Store) Reserve(ctx context.Context, scope, key, requestHash string) (rec *IdemRecord, fresh bool, err error) {
	err = s.write(ctx, func(c *conn) error {
		now := s.opt.Now()
		if _, err := c.run(`DELETE FROM idempotency WHERE expires_at <= ?`, nanos(now)); err != nil {
			return translate(err)
		}
		n, err := c.exec(`INSERT INTO idempotency (scope, key, request_hash, status, header, body, expires_at)
			VALUES (?, ?, ?, 0, '{}', NULL, ?) ON CONFLICT DO NOTHING`,
			scope, key, requestHash, nanos(now.Add(s.opt.IdempotencyFor)))
		if err != nil {
			return translate(err)
		}
		if fresh = n == 1; fresh {
			return nil
		}
		rec, err = s.record(c, scope, key)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	return rec, fresh, nil
}

func (s *Store) record(c *conn, scope, key string) (*IdemRecord, error) {
	var r IdemRecord
	var header string
	found, err := c.get(`SELECT request_hash, status, header, body FROM idempotency WHERE scope = ? AND key = ?`,
		[]any{scope, key}, &r.RequestHash, &r.Status, &header, &r.Body)
	if err != nil {
		return nil, translate(err)
	}
	if !found {
		return nil, notFound("idempotency key", key)
	}
	if err := json.Unmarshal([]byte(header), &r.Header); err != nil {
		return nil, sandbox.Wrap(err, sandbox.CodeInternal, "a record of the metadata store is damaged")
	}
	return &r, nil
}

// Complete records the answer of the request that reserved the key. It is
// CodeNotFound when the key is not reserved.
func (s *Store) Complete(ctx context.Context, scope, key string, status int, header http.Header, body []byte) error {
	h, err := json.Marshal(header)
	if err != nil {
		return sandbox.Wrap(err, sandbox.CodeInternal, "the answer's header could not be kept")
	}
	return s.write(ctx, func(c *conn) error {
		n, err := c.exec(`UPDATE idempotency SET status = ?, header = ?, body = ?, expires_at = ? WHERE scope = ? AND key = ?`,
			status, string(h), body, nanos(s.opt.Now().Add(s.opt.IdempotencyFor)), scope, key)
		if err != nil {
			return translate(err)
		}
		if n == 0 {
			return notFound("idempotency key", key)
		}
		return nil
	})
}

// Release frees a key whose request has not been completed; nil when it is free.
func (s *Store) Release(ctx context.Context, scope, key string) error {
	return s.write(ctx, func(c *conn) error {
		_, err := c.run(`DELETE FROM idempotency WHERE scope = ? AND key = ? AND status = 0`, scope, key)
		return translate(err)
	})
}

// releasePending frees the keys of requests that a daemon which is gone was
// working on.
func (s *Store) releasePending(c *conn) error {
	_, err := c.run(`DELETE FROM idempotency WHERE status = 0 OR expires_at <= ?`, nanos(s.opt.Now()))
	return err
}
