package files

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Code says what kind of failure an [Error] is. The strings are stable. A Code
// is itself an error, for use with [errors.Is].
type Code string

// Error implements error.
func (c Code) Error() string { return string(c) }

// The codes of this package.
const (
	ErrNotFound    Code = "not_found"   // nothing has that name
	ErrExists      Code = "exists"      // the name is taken
	ErrNotDir      Code = "not_dir"     // a directory was needed
	ErrIsDir       Code = "is_dir"      // a directory stands there
	ErrNotRegular  Code = "not_regular" // FIFO, socket or device: no data is read or written
	ErrNotEmpty    Code = "not_empty"   // the directory has entries
	ErrBadPath     Code = "bad_path"    // empty, too long, NUL, or naming the root where that makes no sense
	ErrOutside     Code = "outside"     // leads off the root's own file system
	ErrSymlink     Code = "symlink"     // a symlink loop, or a symlink where none is followed
	ErrTooLarge    Code = "too_large"   // a limit of Limits was met
	ErrNoSpace     Code = "no_space"    // file system or quota full
	ErrReadOnly    Code = "read_only"   // a checkpoint, or a read-only mount
	ErrPermission  Code = "permission"  // refused by the kernel
	ErrBusy        Code = "busy"        // in use, or changing too fast
	ErrUnsupported Code = "unsupported" // the file system can't do that
	ErrInvalid     Code = "invalid"     // an argument out of its range
	ErrBadArchive  Code = "bad_archive" // a tar that is damaged or not allowed
	ErrSource      Code = "source"      // the caller's reader or writer failed
	ErrCanceled    Code = "canceled"    // the context ended
	ErrInternal    Code = "internal"    // anything else
)

// Error is the error of every operation in this package.
type Error struct {
	Op   string // operation: "stat", "write", ...
	Path string // as the caller gave it, or the archive entry's name
	Code Code
	Err  error // the cause; nil when Code says it all
}

// Error implements error.
func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%s %q: %s", e.Op, e.Path, e.Code)
	}
	return fmt.Sprintf("%s %q: %v", e.Op, e.Path, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is e's code.
func (e *Error) Is(target error) bool {
	c, ok := target.(Code)
	return ok && c == e.Code
}

// fail gives err its operation, path and code. It returns nil for nil and leaves
// an *Error as it is.
func fail(op, path string, err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) && error(e) == err { //nolint:errorlint // one that wraps an *Error says more
		return err
	}
	return &Error{Op: op, Path: path, Code: codeOf(err), Err: err}
}

// because returns an error with a code and a sentence.
func because(c Code, format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{c}, args...)...)
}

func codeOf(err error) Code {
	var c Code
	if errors.As(err, &c) {
		return c
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return ErrCanceled
	}
	var no unix.Errno
	if !errors.As(err, &no) {
		return ErrInternal
	}
	switch no {
	case unix.ENOENT, unix.ESTALE:
		return ErrNotFound
	case unix.EEXIST:
		return ErrExists
	case unix.ENOTDIR:
		return ErrNotDir
	case unix.EISDIR:
		return ErrIsDir
	case unix.ENOTEMPTY:
		return ErrNotEmpty
	case unix.ENAMETOOLONG:
		return ErrBadPath
	case unix.EXDEV:
		return ErrOutside
	case unix.ELOOP:
		return ErrSymlink
	case unix.EFBIG:
		return ErrTooLarge
	case unix.ENOSPC, unix.EDQUOT:
		return ErrNoSpace
	case unix.EROFS:
		return ErrReadOnly
	case unix.EPERM, unix.EACCES:
		return ErrPermission
	case unix.EAGAIN, unix.EBUSY, unix.ETXTBSY, unix.EMLINK:
		return ErrBusy
	case unix.EOPNOTSUPP, unix.ENOSYS:
		return ErrUnsupported
	case unix.ENXIO, unix.ENODEV:
		return ErrNotRegular
	default:
		return ErrInternal
	}
}
