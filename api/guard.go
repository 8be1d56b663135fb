package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"strings"

	"cairn/sandbox"
)

// Token lets a caller of a TCP listener in.
type Token struct {
	Name   string // for logs, and to keep the idempotency keys of callers apart
	Secret string
}

// localHosts are the Host values that clients of the Unix socket send. A browser
// that was tricked into sending a request sends another.
var localHosts = map[string]bool{"": true, "localhost": true, "127.0.0.1": true, "[::1]": true, "cairn": true, "cairnd": true, "unix": true}

// guard keeps out browsers (on the Unix socket), and callers without a token (on
// any other listener).
func (s *server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := s.admit(r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), keyPrincipal, who)))
	})
}

func (s *server) admit(r *http.Request) (principal string, err error) {
	addr, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if addr != nil && addr.Network() == "unix" {
		if r.Header.Get("Origin") != "" || r.Header.Get("Referer") != "" {
			return "", sandbox.Errorf(sandbox.CodeForbidden, "requests of web pages are not answered here")
		}
		if !localHosts[strings.ToLower(hostname(r.Host))] {
			return "", sandbox.Errorf(sandbox.CodeForbidden, "unknown Host; use localhost")
		}
		return "local", nil
	}
	if o := r.Header.Get("Origin"); o != "" {
		if u, err := url.Parse(o); err != nil || !strings.EqualFold(u.Host, r.Host) {
			return "", sandbox.Errorf(sandbox.CodeForbidden, "requests of other web pages are not answered")
		}
	}
	if r.URL.Path == "/healthz" || r.URL.Path == "/readyz" {
		return "", nil
	}
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		given = ""
	}
	// All are compared, by digest: neither which one matched nor its length shows in the time.
	sum := sha256.Sum256([]byte(strings.TrimSpace(given)))
	for _, t := range s.tokens {
		if subtle.ConstantTimeCompare(sum[:], t.sum[:]) == 1 {
			principal = "token:" + t.name
		}
	}
	if principal == "" {
		return "", &sandbox.Error{Code: codeUnauthorized, Message: "a bearer token is needed"}
	}
	return principal, nil
}

type tokenSum struct {
	name string
	sum  [sha256.Size]byte
}

func sumTokens(tokens []Token) []tokenSum {
	var sums []tokenSum
	for _, t := range tokens {
		if t.Secret != "" { // an empty one would let everybody in
			sums = append(sums, tokenSum{t.Name, sha256.Sum256([]byte(t.Secret))})
		}
	}
	return sums
}

func hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		if strings.Contains(h, ":") {
			return "[" + h + "]"
		}
		return h
	}
	return host
}
