package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"

	"cairn/sandbox"
)

// maxKept bounds the body of an answer that is kept, bytes.
const maxKept = 1 << 20

// idempotent gives the kept answer to a request whose key was seen.
func (s *server) idempotent(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		if key == "" || r.Method != http.MethodPost {
			next.ServeHTTP(w, r)
			return
		}
		if s.Idempotency == nil {
			s.fail(w, r, sandbox.Errorf(sandbox.CodeUnsupported, "this daemon keeps no idempotency keys"))
			return
		}
		scope, _ := r.Context().Value(keyPrincipal).(string)
		hash := requestHash(r)
		rec, fresh, err := s.Idempotency.Reserve(r.Context(), scope, key, hash)
		switch {
		case err != nil:
			s.fail(w, r, err)
		case fresh:
			s.keepAnswer(w, r, next, scope, key) //nolint:contextcheck // the answer is kept for a caller that went away
		case rec.Hash != hash:
			s.fail(w, r, &sandbox.Error{Code: codeIdempotencyMismatch, Message: "another request was made with this Idempotency-Key"})
		case rec.Status == 0:
			w.Header().Set("Retry-After", "1")
			s.fail(w, r, &sandbox.Error{Code: codeIdempotencyInProgress, Message: "the first request with this Idempotency-Key has not ended"})
		default:
			maps.Copy(w.Header(), rec.Header)
			w.Header().Set("Idempotency-Replayed", "true")
			w.WriteHeader(rec.Status)
			_, _ = w.Write(rec.Body) // the caller may be gone
		}
	})
}

// keepAnswer runs the request and keeps its answer, unless it is one that a
// repetition could better.
func (s *server) keepAnswer(w http.ResponseWriter, r *http.Request, next http.Handler, scope, key string) {
	k := &keeper{ResponseWriter: w}
	whole := false
	defer func() {
		ctx := context.WithoutCancel(r.Context()) // the answer is kept for a caller that went away
		var err error
		if whole && k.worthKeeping() {
			err = s.Idempotency.Complete(ctx, scope, key, k.status, k.header, k.body.Bytes())
		} else {
			err = s.Idempotency.Release(ctx, scope, key)
		}
		if err != nil {
			s.log.ErrorContext(ctx, "cannot keep an answer by its key", "err", err)
		}
	}()
	next.ServeHTTP(k, r)
	whole = true
}

// keeper copies an answer as it is written.
type keeper struct {
	http.ResponseWriter
	status int
	header http.Header
	body   bytes.Buffer
	large  bool
}

func (k *keeper) WriteHeader(status int) {
	if k.status == 0 && status >= 200 {
		k.status = status
		k.header = http.Header{}
		for _, name := range []string{"Content-Type", "Location"} {
			if v := k.Header().Values(name); len(v) > 0 {
				k.header[name] = v
			}
		}
	}
	k.ResponseWriter.WriteHeader(status)
}

func (k *keeper) Write(p []byte) (int, error) {
	if k.status == 0 {
		k.WriteHeader(http.StatusOK)
	}
	switch {
	case k.large:
	case k.body.Len()+len(p) > maxKept:
		k.tooLarge()
	default:
		k.body.Write(p)
	}
	return k.ResponseWriter.Write(p)
}

// tooLarge replaces what is kept by an answer that says that it was not.
func (k *keeper) tooLarge() {
	k.large = true
	k.body.Reset()
	p := problemOf(context.Background(), sandbox.Errorf(sandbox.CodeConflict, "the first request was carried out; its answer (status %d) was too large to be kept", k.status))
	k.status = p.Status
	k.header = http.Header{"Content-Type": {"application/problem+json"}}
	if body, err := json.Marshal(p); err == nil {
		k.body.Write(body)
	}
}

// Unwrap serves http.ResponseController.
func (k *keeper) Unwrap() http.ResponseWriter { return k.ResponseWriter }

// worthKeeping says whether the request was decided: a failure of the host, a
// lack of capacity or a caller that left may end otherwise the next time.
func (k *keeper) worthKeeping() bool {
	if k.status == 0 {
		k.status, k.header = http.StatusOK, http.Header{}
	}
	switch k.status {
	case http.StatusTooManyRequests, statusCancelled:
		return false
	}
	return k.status < http.StatusInternalServerError
}

// requestHash tells requests apart: method, address, form of the answer, and the
// body where it is JSON (an archive's size stands for it).
func requestHash(r *http.Request) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s\n%s\n%d\n", r.Method, r.URL.RequestURI(), negotiate(r.Header.Get("Accept"), "application/json", "text/event-stream"), contentType(r), r.ContentLength)
	if b, ok := r.Body.(*buffered); ok {
		h.Write(b.raw)
	}
	return hex.EncodeToString(h.Sum(nil))
}
