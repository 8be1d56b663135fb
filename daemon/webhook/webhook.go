package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"cairn/sandbox"
)

// Client posts to allowed addresses.
type Client struct {
	allow []*url.URL
	http  *http.Client
}

// New makes a Client that posts to what is below the given prefixes.
func New(allow []string) (*Client, error) {
	const (
		dialTime   = 10 * time.Second
		maxHeaders = 64 << 10
	)
	c := &Client{http: &http.Client{
		Transport: &http.Transport{
			Proxy: nil, DisableKeepAlives: true, DisableCompression: true,
			TLSHandshakeTimeout: dialTime, MaxResponseHeaderBytes: maxHeaders,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	for _, a := range allow {
		u, err := parse(a)
		if err != nil || u.RawQuery != "" || u.ForceQuery {
			return nil, fmt.Errorf("%q is not an http or https address without user, query and fragment", a)
		}
		c.allow = append(c.allow, u)
	}
	return c, nil
}

// parse takes addresses that everybody reads in the same way.
func parse(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, sandbox.Invalid("url", "it is not an address")
	}
	u.Scheme = strings.ToLower(u.Scheme)
	switch {
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", u.Opaque != "":
		return nil, sandbox.Invalid("url", "an address begins with http:// or https:// and a host")
	case u.User != nil:
		return nil, sandbox.Invalid("url", "no user and password in the address")
	case u.Fragment != "" || strings.Contains(address, "#"):
		return nil, sandbox.Invalid("url", "no fragment in the address")
	}
	path := strings.ToLower(u.EscapedPath())
	if strings.ContainsAny(path, `\`) || strings.Contains(path, "%2f") || strings.Contains(path, "%5c") || strings.Contains(path, "%2e") {
		return nil, sandbox.Invalid("url", "no escaped dot or slash in the path")
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return nil, sandbox.Invalid("url", "no . or .. in the path")
		}
	}
	return u, nil
}

// Check is nil for an address below an allowed prefix, else a CodeInvalid or
// CodeForbidden.
func (c *Client) Check(address string) error {
	u, err := parse(address)
	if err != nil {
		return err
	}
	for _, a := range c.allow {
		if a.Scheme == u.Scheme && strings.EqualFold(a.Hostname(), u.Hostname()) && port(a) == port(u) && below(u.EscapedPath(), a.EscapedPath()) {
			return nil
		}
	}
	return sandbox.Errorf(sandbox.CodeForbidden, "the operator's configuration (hooks.allow) does not allow this address")
}

func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	return map[string]string{"http": "80", "https": "443"}[u.Scheme]
}

// below says whether path is prefix or lies below it.
func below(path, prefix string) bool {
	prefix = strings.TrimSuffix(prefix, "/")
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && (rest == "" || rest[0] == '/')
}

// Post posts body, and is nil when the answer has a status from 200 to 299. What is
// allowed is looked at again: it may have changed since the address was accepted.
func (c *Client) Post(ctx context.Context, address, key string, body []byte) error {
	if err := c.Check(address); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return sandbox.Wrap(err, sandbox.CodeInvalid, "it is not an address")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "cairn")
	req.Header.Set("Idempotency-Key", key)
	resp, err := c.http.Do(req)
	if err != nil {
		return sandbox.Wrap(err, sandbox.CodeUnavailable, "there was no answer")
	}
	// The rest of an answer is of no interest, whatever its size.
	defer resp.Body.Close()
	switch {
	case resp.StatusCode >= http.StatusOK && resp.StatusCode < http.StatusMultipleChoices:
		return nil
	case resp.StatusCode < http.StatusBadRequest:
		return sandbox.Errorf(sandbox.CodeUnavailable, "the answer was %d; redirects are not followed", resp.StatusCode)
	}
	return sandbox.Errorf(sandbox.CodeUnavailable, "the answer was %d", resp.StatusCode)
}
