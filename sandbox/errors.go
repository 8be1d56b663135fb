package sandbox

import (
	"errors"
	"fmt"
)

// Code is the stable, machine-readable kind of an Error. Callers branch on it;
// it never changes meaning between versions.
type Code string

// The codes. Each is documented where the API maps it to a status.
const (
	CodeInvalid         Code = "invalid_argument"     // a field of the request is wrong; Field names it
	CodeNotFound        Code = "not_found"            // the named thing does not exist
	CodeConflict        Code = "conflict"             // it exists already, or its state forbids this
	CodeBusy            Code = "busy"                 // another operation holds the sandbox; Running names it
	CodeInUse           Code = "in_use"               // something still needs it
	CodeImageMismatch   Code = "image_mismatch"       // the checkpoint is of another image than the sandbox
	CodeCorrupt         Code = "checkpoint_corrupt"   // what is on disk is not what was recorded
	CodeLost            Code = "checkpoint_lost"      // not durable when the host went down
	CodeUnsupported     Code = "unsupported"          // this host or version cannot do it
	CodeCommandNotFound Code = "command_not_found"    // no such executable in the sandbox
	CodeNotExecutable   Code = "command_not_runnable" // found, but it cannot be executed
	CodeHookFailed      Code = "hook_failed"          // a hook failed that must not
	CodeNoSpace         Code = "no_space"             // the disk, or the sandbox's share of it, is full
	CodeTooLarge        Code = "too_large"            // a bound on sizes or counts was exceeded
	CodeForbidden       Code = "forbidden"            // the operator's configuration does not allow it
	CodeExhausted       Code = "resource_exhausted"   // no capacity for another one now
	CodeTimeout         Code = "timeout"              // it did not finish in the time given
	CodeCancelled       Code = "cancelled"            // the caller went away
	CodeUnavailable     Code = "unavailable"          // starting, stopping, or containerd is away: try again
	CodeInternal        Code = "internal"             // a defect or an unexpected failure of the host
)

// Error is every error that the domain returns on purpose. An error that is not
// an *Error is a defect or an unexpected failure: callers show it as
// CodeInternal with the request id, and log it whole.
type Error struct {
	Code    Code
	Op      string // the operation, e.g. "restore"
	Field   string // for CodeInvalid: the request field, JSON spelling
	Running string // for CodeBusy: the operation that holds the sandbox
	Message string // one sentence for a person: what is wrong, what would be right
	Err     error  // the cause, for logs; never shown to API callers
}

func (e *Error) Error() string {
	s := string(e.Code) + ": " + e.Message
	if e.Op != "" {
		s = e.Op + ": " + s
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an *Error with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Invalid makes the error for a request field that is wrong.
func Invalid(field, format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Field: field, Message: fmt.Sprintf(format, args...)}
}

// Wrap gives err a code and a message for people, keeping it as the cause.
func Wrap(err error, code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Err: err}
}

// CodeOf says which code err carries: CodeInternal for one that carries none,
// "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}
