package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

// DefaultSocket is where a daemon listens unless told otherwise.
const DefaultSocket = "/run/cairn/cairn.sock"

// Options says which daemon to talk to. With none given it is the one at
// DefaultSocket.
type Options struct {
	Socket string // path of a Unix socket
	Host   string // "host:port", "http(s)://host:port" or "unix:///path"; goes before Socket
	Token  string // needed with a TCP host
}

// Dial returns a client of a daemon. Nothing is sent yet.
func Dial(o Options) (*Client, error) {
	transport := &http.Transport{
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true,
	}
	base, socket := "http://localhost", o.Socket
	switch path, isUnix := strings.CutPrefix(o.Host, "unix://"); {
	case isUnix:
		socket = path
	case strings.HasPrefix(o.Host, "http://"), strings.HasPrefix(o.Host, "https://"):
		base, socket = o.Host, ""
	case strings.Contains(o.Host, "://"):
		return nil, fmt.Errorf("host %q: want unix://, http:// or https://", o.Host)
	case o.Host != "":
		base, socket = "http://"+o.Host, ""
	case socket == "":
		socket = DefaultSocket
	}
	if socket != "" {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}
	}
	opts := []ClientOption{WithHTTPClient(&http.Client{Transport: transport})}
	if o.Token != "" {
		opts = append(opts, WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
			r.Header.Set("Authorization", "Bearer "+o.Token)
			return nil
		}))
	}
	c, err := NewClient(base, opts...)
	if err != nil {
		return nil, fmt.Errorf("daemon's address: %w", err)
	}
	return c, nil
}

// Close drops idle connections.
func Close(c *Client) {
	if h, ok := c.Client.(*http.Client); ok {
		h.CloseIdleConnections()
	}
}

// Accept makes a request ask for one form of the answer.
func Accept(mediaType string) RequestEditorFn {
	return func(_ context.Context, r *http.Request) error {
		r.Header.Set("Accept", mediaType)
		return nil
	}
}

// Header sets a header of a request.
func Header(name, value string) RequestEditorFn {
	return func(_ context.Context, r *http.Request) error {
		r.Header.Set(name, value)
		return nil
	}
}

// IsUnreachable says whether err means that no daemon answered.
func IsUnreachable(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
