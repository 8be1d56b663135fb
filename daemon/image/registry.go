package image

import (
	"context"
	"crypto/tls"
	"net/http"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/distribution/reference"

	"cairn/sandbox"
)

const maxRef = 512

// parseRef completes a reference the way docker does: "debian" is
// "docker.io/library/debian:latest".
func parseRef(ref string) (full, host string, err error) {
	if len(ref) > maxRef {
		return "", "", sandbox.Invalid("ref", "it is longer than %d bytes", maxRef)
	}
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		e := sandbox.Invalid("ref", "%q is not an image reference, such as debian:12 or registry.example.org/team/tool:1", ref)
		e.Err = err
		return "", "", e
	}
	return named.String(), reference.Domain(named), nil
}

// resolver talks to the registry at host in the way r asks for, and to
// whatever else it sends us to in the safe way and without credentials.
func resolver(r PullRequest, host string) (_ remotes.Resolver, closeIdle func()) {
	transport := docker.DefaultHTTPTransport(nil)
	if r.InsecureTLS {
		transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the caller asked for it, for this pull alone
	}
	c := &http.Client{Transport: transport}
	creds := func(to string) (string, string, error) {
		if sameHost(to, host) {
			return r.Username, r.Password, nil
		}
		return "", "", nil
	}
	opts := []docker.RegistryOpt{
		docker.WithClient(c),
		docker.WithAuthorizer(docker.NewDockerAuthorizer(docker.WithAuthClient(c), docker.WithAuthCreds(creds))),
	}
	if r.PlainHTTP {
		opts = append(opts, docker.WithPlainHTTP(func(to string) (bool, error) { return sameHost(to, host), nil }))
	}
	return docker.NewResolver(docker.ResolverOptions{Hosts: docker.ConfigureDefaultRegistries(opts...)}), transport.CloseIdleConnections
}

// sameHost says whether a request to that host is for the registry named.
func sameHost(to, registry string) bool {
	if registry == "docker.io" {
		return to == "docker.io" || to == "registry-1.docker.io"
	}
	return strings.EqualFold(to, registry)
}

// resolve asks the registry what the reference names.
func resolve(ctx context.Context, res remotes.Resolver, full string) (string, descriptor, remotes.Fetcher, error) {
	name, desc, err := res.Resolve(ctx, full)
	if err != nil {
		return "", desc, nil, err
	}
	f, err := res.Fetcher(ctx, name)
	return name, desc, f, err
}
