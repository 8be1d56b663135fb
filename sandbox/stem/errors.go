package stem

import (
	"errors"
	"fmt"

	"cairn/sandbox/stem/wire"
)

// Code says what kind of failure an Error is. It is itself an error, for errors.Is:
//
//	if errors.Is(err, stem.CommandNotFound) ...
type Code string

func (c Code) Error() string { return string(c) }

// Codes that the stem answers with.
const (
	CommandNotFound  Code = wire.CodeCommandNotFound  // no such file, or its interpreter is missing
	PermissionDenied Code = wire.CodePermissionDenied // not executable by that user, or not a program
	BadCwd           Code = wire.CodeBadCwd
	BadUser          Code = wire.CodeBadUser
	Limit            Code = wire.CodeLimit // processes, memory, disk, descriptors, or size of the arguments
	Internal         Code = wire.CodeInternal
	BadRequest       Code = wire.CodeBadRequest
	Unsupported      Code = wire.CodeUnsupported
	Exists           Code = wire.CodeExists
	NotFound         Code = wire.CodeNotFound   // no process of that id
	NotRunning       Code = wire.CodeNotRunning // it has ended, or its input is closed
	Busy             Code = wire.CodeBusy       // it has not ended; or all processes are being ended
)

// Codes of the host's side.
const (
	// Unreachable: no stem answered in time. After Start, the process may or may not run.
	Unreachable Code = "unreachable"
	// Protocol: the stem answered with what no stem answers.
	Protocol Code = "protocol"
	// Tampered: something else lies where a file, directory or socket should.
	Tampered Code = "tampered"
	// OutputLimit: a process has written more than Options.MaxOutput to a stream.
	OutputLimit Code = "output_limit"
)

// Error is a failure of an operation on a sandbox's stem or processes.
type Error struct {
	Code    Code
	Op      string // "start", "wait", ...
	Message string // from the sandbox when Code is one of the stem's: quote it, don't trust it
	Err     error  // cause on the host's side, or nil
}

func (e *Error) Error() string {
	s := "stem: " + e.Op + ": " + string(e.Code)
	if e.Message != "" {
		s += fmt.Sprintf(": %q", e.Message)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap makes errors.Is work on the code and on the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Code}
	}
	return []error{e.Code, e.Err}
}

// CodeOf returns the code of the first Error in err's tree, or "".
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// known maps a code named by the stem to itself, and anything else to Protocol.
func known(code string) Code {
	switch c := Code(code); c {
	case CommandNotFound, PermissionDenied, BadCwd, BadUser, Limit, Internal, BadRequest,
		Unsupported, Exists, NotFound, NotRunning, Busy, Tampered:
		return c
	default:
		return Protocol
	}
}
