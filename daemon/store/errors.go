package store

import (
	"context"
	"errors"
	"fmt"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"cairn/sandbox"
)

// CorruptError says that the database file is damaged, or is not one of Cairn's.
type CorruptError struct {
	Path string
	What string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("database %s: %s", e.Path, e.What)
}

// NewerError says that a newer version of Cairn has migrated the database.
type NewerError struct {
	Path  string
	Has   int64 // schema version of the file
	Knows int64 // newest that this program knows
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("database %s has schema version %d, this program knows up to %d: use the newer cairnd that wrote it",
		e.Path, e.Has, e.Knows)
}

var errClosed = sandbox.Errorf(sandbox.CodeUnavailable, "the metadata store is closed")

// primary is the SQLite result code of err without its extension, 0 for none.
func primary(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// extended is the extended SQLite result code of err, 0 for none.
func extended(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

// translate turns a failure of SQLite into a domain error.
func translate(err error) error {
	if err == nil {
		return nil
	}
	var de *sandbox.Error
	if errors.As(err, &de) {
		return err
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return sandbox.Wrap(err, sandbox.CodeTimeout, "the metadata store did not answer in time")
	case errors.Is(err, context.Canceled):
		return sandbox.Wrap(err, sandbox.CodeCancelled, "the request was cancelled")
	}
	switch primary(err) {
	case sqlite3.SQLITE_FULL:
		return sandbox.Wrap(err, sandbox.CodeNoSpace, "the disk that holds the metadata is full")
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return sandbox.Wrap(err, sandbox.CodeUnavailable, "the metadata store is busy; try again")
	default:
		return sandbox.Wrap(err, sandbox.CodeInternal, "the metadata store failed")
	}
}

// isTaken says whether err is a violated uniqueness.
func isTaken(err error) bool {
	return extended(err) == sqlite3.SQLITE_CONSTRAINT_UNIQUE
}

// isOrphan says whether err is a reference to a row that is not there.
func isOrphan(err error) bool {
	return extended(err) == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY
}

func notFound(what, id string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "there is no %s %q", what, id)
}
