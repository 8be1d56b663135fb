package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"cairn/api/types"
	"cairn/sandbox"
	"cairn/sandbox/files"
)

// Codes that only the API has.
const (
	codeUnauthorized          sandbox.Code = "unauthorized"
	codeMethodNotAllowed      sandbox.Code = "method_not_allowed"
	codeNotAcceptable         sandbox.Code = "not_acceptable"
	codeMediaType             sandbox.Code = "unsupported_media_type"
	codeRange                 sandbox.Code = "range_not_satisfiable"
	codeOverloaded            sandbox.Code = "overloaded"
	codeIdempotencyInProgress sandbox.Code = "idempotency_in_progress"
	codeIdempotencyMismatch   sandbox.Code = "idempotency_mismatch"
)

// statusCancelled is what a caller that went away would have been answered.
const statusCancelled = 499

// statusOf is the one place where a code gets its HTTP status and title.
func statusOf(c sandbox.Code) (status int, title string) {
	switch c {
	case sandbox.CodeInvalid:
		return http.StatusBadRequest, "Invalid request"
	case codeUnauthorized:
		return http.StatusUnauthorized, "Not authorized"
	case sandbox.CodeForbidden:
		return http.StatusForbidden, "Forbidden"
	case sandbox.CodeNotFound:
		return http.StatusNotFound, "Not found"
	case codeMethodNotAllowed:
		return http.StatusMethodNotAllowed, "Method not allowed"
	case codeNotAcceptable:
		return http.StatusNotAcceptable, "No such form of the answer"
	case sandbox.CodeConflict:
		return http.StatusConflict, "Conflict"
	case sandbox.CodeBusy:
		return http.StatusConflict, "Another operation is running"
	case sandbox.CodeInUse:
		return http.StatusConflict, "In use"
	case sandbox.CodeImageMismatch:
		return http.StatusConflict, "Checkpoint of another image"
	case codeIdempotencyInProgress:
		return http.StatusConflict, "The first request has not ended"
	case codeIdempotencyMismatch:
		return http.StatusUnprocessableEntity, "Key used for another request"
	case sandbox.CodeLost:
		return http.StatusGone, "Checkpoint lost"
	case sandbox.CodeCorrupt:
		return http.StatusUnprocessableEntity, "Checkpoint damaged"
	case sandbox.CodeCommandNotFound:
		return http.StatusUnprocessableEntity, "Command not found"
	case sandbox.CodeNotExecutable:
		return http.StatusUnprocessableEntity, "Command cannot be run"
	case sandbox.CodeHookFailed:
		return http.StatusFailedDependency, "A hook failed"
	case sandbox.CodeTooLarge:
		return http.StatusRequestEntityTooLarge, "Too large"
	case codeMediaType:
		return http.StatusUnsupportedMediaType, "Content type not supported"
	case codeRange:
		return http.StatusRequestedRangeNotSatisfiable, "Range not satisfiable"
	case sandbox.CodeExhausted:
		return http.StatusTooManyRequests, "No capacity"
	case sandbox.CodeCancelled:
		return statusCancelled, "Cancelled"
	case sandbox.CodeUnsupported:
		return http.StatusNotImplemented, "Not supported here"
	case codeOverloaded:
		return http.StatusServiceUnavailable, "Too many requests"
	case sandbox.CodeUnavailable:
		return http.StatusServiceUnavailable, "Not available now"
	case sandbox.CodeTimeout:
		return http.StatusGatewayTimeout, "Took too long"
	case sandbox.CodeNoSpace:
		return http.StatusInsufficientStorage, "No space left"
	case sandbox.CodeInternal:
	}
	return http.StatusInternalServerError, "Internal error"
}

// fieldErrors is an error that names the wrong parts of a request.
type fieldErrors []types.FieldError

func (f fieldErrors) Error() string {
	if len(f) == 0 {
		return "invalid request"
	}
	return f[0].Field + ": " + f[0].Detail
}

// problemOf translates err. The cause of an error is never shown.
func problemOf(ctx context.Context, err error) types.Problem {
	p := types.Problem{RequestId: optional(RequestID(ctx))}
	code := sandbox.CodeInternal
	p.Detail = "an unexpected failure; the log has it under the request id"
	var (
		domain *sandbox.Error
		fields fieldErrors
		file   *files.Error
		tooBig *http.MaxBytesError
	)
	switch {
	case errors.As(err, &fields):
		code, p.Detail = sandbox.CodeInvalid, fields.Error()
		p.Errors = (*[]types.FieldError)(&fields)
	case errors.As(err, &domain):
		code = domain.Code
		if code != sandbox.CodeInternal {
			p.Detail = domain.Message
		}
		if domain.Field != "" {
			p.Errors = &[]types.FieldError{{Field: domain.Field, Detail: domain.Message}}
		}
		p.Running = optional(domain.Running)
	case errors.As(err, &tooBig):
		code, p.Detail = sandbox.CodeTooLarge, "the body is larger than this operation takes"
	case errors.As(err, &file):
		code, p.Detail = fileCode(file)
	case errors.Is(err, context.DeadlineExceeded):
		code, p.Detail = sandbox.CodeTimeout, "it did not finish in the time given"
	case errors.Is(err, context.Canceled):
		code, p.Detail = sandbox.CodeCancelled, "the caller went away"
	}
	status, title := statusOf(code)
	p.Status, p.Title, p.Code = status, title, types.Code(code)
	p.Type = "urn:cairn:problem:" + string(code)
	return p
}

// fileCode translates an error of the files of a sandbox.
func fileCode(e *files.Error) (sandbox.Code, string) {
	at := e.Op + " " + e.Path + ": "
	switch e.Code {
	case files.ErrNotFound:
		return sandbox.CodeNotFound, at + "there is no such file or directory"
	case files.ErrExists:
		return sandbox.CodeConflict, at + "it exists already"
	case files.ErrNotDir:
		return sandbox.CodeConflict, at + "it is not a directory"
	case files.ErrIsDir:
		return sandbox.CodeConflict, at + "it is a directory"
	case files.ErrNotRegular:
		return sandbox.CodeConflict, at + "it is not a regular file"
	case files.ErrNotEmpty:
		return sandbox.CodeConflict, at + "the directory is not empty (use recursive)"
	case files.ErrSymlink:
		return sandbox.CodeConflict, at + "a symbolic link is not followed here"
	case files.ErrReadOnly:
		return sandbox.CodeConflict, at + "it is read-only"
	case files.ErrBusy:
		return sandbox.CodeConflict, at + "it is in use or changes too fast"
	case files.ErrOutside:
		return sandbox.CodeInvalid, at + "it leads out of the sandbox's own file system"
	case files.ErrBadPath, files.ErrInvalid, files.ErrBadArchive:
		return sandbox.CodeInvalid, e.Error() // these speak of the request alone
	case files.ErrTooLarge:
		return sandbox.CodeTooLarge, at + "it is larger than allowed"
	case files.ErrNoSpace:
		return sandbox.CodeNoSpace, at + "no space left"
	case files.ErrPermission:
		return sandbox.CodeForbidden, at + "permission denied"
	case files.ErrUnsupported:
		return sandbox.CodeUnsupported, at + "the file system cannot do that"
	case files.ErrCanceled:
		return sandbox.CodeCancelled, at + "the caller went away"
	case files.ErrSource:
		return sandbox.CodeInvalid, at + "the body could not be read to its end"
	case files.ErrInternal:
	}
	return sandbox.CodeInternal, "an unexpected failure; the log has it under the request id"
}

// fail answers with the problem that err is. When the answer has begun it cuts
// the connection off instead.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(r.Context(), err)
	if p.Status == http.StatusInternalServerError {
		s.log.ErrorContext(r.Context(), "request failed", "err", err)
	}
	if t, ok := w.(*tracker); ok {
		t.err = err
		if t.status != 0 {
			panic(http.ErrAbortHandler)
		}
	}
	writeProblem(w, p)
}

func writeProblem(w http.ResponseWriter, p types.Problem) {
	body, err := json.Marshal(p)
	if err != nil { // a Problem holds nothing that can't be marshalled
		http.Error(w, p.Detail, p.Status)
		return
	}
	h := w.Header()
	h.Del("Content-Length")
	h.Del("Content-Encoding")
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests {
		h.Set("Retry-After", "1")
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="cairn"`)
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // the caller may be gone
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
