package guest

import (
	"errors"

	"cairn/sandbox/stem/wire"

	"golang.org/x/sys/unix"
)

const codeBadUser = wire.CodeBadUser

// failure is an error with a code for the other side.
type failure struct {
	code    string
	message string
}

func (f failure) Error() string { return f.message }

// asFailure gives any error a code.
func asFailure(err error) failure {
	var f failure
	if errors.As(err, &f) {
		return f
	}
	code := wire.CodeInternal
	switch {
	case errors.Is(err, wire.ErrMalformed), errors.Is(err, wire.ErrTooLarge), errors.Is(err, wire.ErrVersion):
		code = wire.CodeBadRequest
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EMFILE),
		errors.Is(err, unix.ENFILE), errors.Is(err, unix.E2BIG), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		code = wire.CodeLimit
	}
	return failure{code, err.Error()}
}
