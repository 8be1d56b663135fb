package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"

	"cairn/sandbox"
)

// refused is the error for content that is not what it should be.
func refused(err error, format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Message: fmt.Sprintf(format, args...), Err: err}
}

func tooLarge(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeTooLarge, format, args...)
}

// away is the error for a containerd that does not answer.
func away(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return cancelled(ctx)
	}
	return sandbox.Wrap(err, sandbox.CodeUnavailable, "containerd is away; try again")
}

// cancelled is why ctx ended, for a caller.
func cancelled(ctx context.Context) error {
	err := context.Cause(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return sandbox.Wrap(err, sandbox.CodeTimeout, "the image did not arrive in the time given")
	}
	return sandbox.Wrap(err, sandbox.CodeCancelled, "the request was cancelled")
}

// explain gives an error of the way from a registry or an archive to the pool a
// code and words. What has a code keeps it.
func explain(ctx context.Context, err error, what string) error {
	if err == nil {
		return nil
	}
	var known *sandbox.Error
	if errors.As(err, &known) {
		return err
	}
	if ctx.Err() != nil {
		return cancelled(ctx)
	}
	var status remoteerrors.ErrUnexpectedStatus
	var netErr *net.OpError
	switch {
	case errors.As(err, &status):
		return explainStatus(err, status.StatusCode, what)
	case errors.Is(err, docker.ErrInvalidAuthorization):
		return sandbox.Wrap(err, sandbox.CodeForbidden, "the registry wants other credentials for %s", what)
	case errdefs.IsNotFound(err):
		return sandbox.Wrap(err, sandbox.CodeNotFound, "the registry has no %s", what)
	case errors.Is(err, syscall.ENOSPC):
		return sandbox.Wrap(err, sandbox.CodeNoSpace, "the disk is full")
	case errors.As(err, &netErr):
		return sandbox.Wrap(err, sandbox.CodeUnavailable, "the registry of %s cannot be reached", what)
	case errdefs.IsUnavailable(err):
		return sandbox.Wrap(err, sandbox.CodeUnavailable, "containerd or the registry is away; try again")
	case errors.Is(err, io.ErrUnexpectedEOF), errdefs.IsFailedPrecondition(err), errdefs.IsInvalidArgument(err):
		return refused(err, "%s is incomplete or damaged", what)
	default:
		return sandbox.Wrap(err, sandbox.CodeInternal, "%s could not be brought in", what)
	}
}

func explainStatus(err error, code int, what string) error {
	switch code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return sandbox.Wrap(err, sandbox.CodeForbidden, "the registry wants other credentials for %s", what)
	case http.StatusNotFound:
		return sandbox.Wrap(err, sandbox.CodeNotFound, "the registry has no %s", what)
	case http.StatusTooManyRequests:
		return sandbox.Wrap(err, sandbox.CodeExhausted, "the registry refuses more requests for now")
	default:
		return sandbox.Wrap(err, sandbox.CodeUnavailable, "the registry failed with status %d for %s", code, what)
	}
}
