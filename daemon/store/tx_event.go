package store

import (
	"fmt"
	"math"

	"cairn/sandbox"
)

// AppendEvent gives the event the next number. Old events beyond the bound go.
func (t *tx) AppendEvent(e sandbox.Event) (sandbox.Event, error) {
	e.Seq = 0 // the row's number is the event's
	data, err := encode(e)
	if err != nil {
		return e, err
	}
	r, err := t.c.run(`INSERT INTO events (data) VALUES (?)`, data)
	if err != nil {
		return e, translate(err)
	}
	if e.Seq, err = r.LastInsertId(); err != nil {
		return e, translate(err)
	}
	return e, translate(t.s.trim.events(t.c, e.Seq, t.s.opt.KeepEvents))
}

// Events lists what came after that number, oldest first, at most MaxLimit.
func (t *tx) Events(after int64, limit int) ([]sandbox.Event, error) {
	var out []sandbox.Event
	err := t.c.each(`SELECT seq, data FROM events WHERE seq > ? ORDER BY seq LIMIT ?`,
		[]any{after, limitOf(sandbox.Page{Limit: limit})}, func(scan func(...any) error) error {
			var seq int64
			var data string
			if err := scan(&seq, &data); err != nil {
				return err
			}
			e, err := decode[sandbox.Event](data)
			if err != nil {
				return err
			}
			e.Seq = seq
			out = append(out, e)
			return nil
		})
	return out, translate(err)
}

// LastEvent is the newest event's number, 0 before the first.
func (t *tx) LastEvent() (int64, error) {
	var seq int64
	_, err := t.c.get(`SELECT coalesce(max(seq), 0) FROM events`, nil, &seq)
	return seq, translate(err)
}

// NextProject counts up. Numbers are not used again, not even after a deletion.
func (t *tx) NextProject() (uint32, error) {
	var n int64
	found, err := t.c.get(`UPDATE counters SET value = value + 1 WHERE name = 'project' RETURNING value`, nil, &n)
	switch {
	case err != nil:
		return 0, translate(err)
	case !found:
		return 0, sandbox.Wrap(fmt.Errorf("counter of projects is missing"), sandbox.CodeInternal, "the metadata store failed")
	case n > math.MaxUint32:
		return 0, sandbox.Errorf(sandbox.CodeExhausted, "all project ids are used up")
	}
	return uint32(n), nil
}
