package store

import (
	"encoding/base64"
	"encoding/binary"
	"time"

	"cairn/sandbox"
)

// Lists hand out DefaultLimit items when no limit is asked for, and never more
// than MaxLimit.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
)

const (
	cursorVersion = 1
	maxCursor     = 1024 // of its encoded form, in bytes
)

// position is where a list goes on: after the item that was made then and has
// this id. Items that come or go meanwhile do not move the others.
type position struct {
	at int64
	id string
}

// kinds of cursors, so that one list does not take another's
const (
	cursorSandboxes   = 's'
	cursorCheckpoints = 'c'
	cursorImages      = 'i'
)

func (p position) cursor(kind byte) string {
	b := make([]byte, 0, 10+len(p.id))
	b = append(b, cursorVersion, kind)
	b = binary.BigEndian.AppendUint64(b, uint64(p.at))
	return base64.RawURLEncoding.EncodeToString(append(b, p.id...))
}

// parseCursor is the inverse of cursor; "" is the beginning.
func parseCursor(kind byte, s string) (position, error) {
	if s == "" {
		return position{}, nil
	}
	bad := sandbox.Invalid("cursor", "it is not a cursor that this list gave out")
	if len(s) > maxCursor {
		return position{}, bad
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) < 11 || b[0] != cursorVersion || b[1] != kind {
		return position{}, bad
	}
	return position{at: int64(binary.BigEndian.Uint64(b[2:10])), id: string(b[10:])}, nil
}

func limitOf(p sandbox.Page) int {
	switch {
	case p.Limit <= 0:
		return DefaultLimit
	case p.Limit > MaxLimit:
		return MaxLimit
	default:
		return p.Limit
	}
}

// nanos is t as it is kept. Times before 1678 or after 2262 do not fit; the
// zero time is 0.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
