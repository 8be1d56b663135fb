package criu

import (
	"fmt"

	"cairn/criu/internal/frame"
)

// Code is the kind of an Error.
type Code string

// The codes.
const (
	CodeUnavailable Code = "unavailable" // CRIU is missing, too old, or the kernel lacks something
	CodeUnsupported Code = "unsupported" // a process has something that can't be dumped
	CodeNoSpace     Code = "no_space"    // the disk is full
	CodeTimeout     Code = "timeout"     // the processes did not stand still in time
	CodeGone        Code = "gone"        // the sandbox or the tree has ended
	CodeImages      Code = "images"      // the images are damaged, altered, or not of this sandbox
	CodeRights      Code = "rights"      // a restored process would have had other rights
	CodeInterrupted Code = "interrupted" // CRIU or the helper was killed
	CodeAborted     Code = "aborted"     // the caller gave up
	CodeStuck       Code = "stuck"       // processes can't be ended
	CodeFailed      Code = "failed"      // something else; Err has CRIU's words
	CodeInternal    Code = "internal"
)

// Error is why a tree could not be dumped or restored, for a person.
type Error struct {
	Code     Code
	PID      int    // of the process that is the reason, inside; 0: none in particular
	Comm     string // its name
	Resource string // what of it, e.g. "io_uring", "file /tmp/x"; "" for none
	Message  string // what is wrong and what to do, one sentence
	Err      error  // for logs
}

func (e *Error) Error() string {
	s := e.Message
	if e.Resource != "" {
		s = e.Resource + ": " + s
	}
	if e.PID > 0 {
		s = fmt.Sprintf("process %d (%s): %s", e.PID, e.Comm, s)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

func fromFailure(f *frame.Failure) *Error {
	return &Error{Code: Code(f.Code), PID: f.PID, Comm: f.Comm, Resource: f.Resource, Message: f.Message}
}
