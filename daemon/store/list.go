package store

import (
	"maps"
	"slices"
	"strings"

	"cairn/sandbox"
)

// selection builds the WHERE of a list.
type selection struct {
	where []string
	args  []any
}

func (s *selection) add(cond string, args ...any) {
	s.where = append(s.where, cond)
	s.args = append(s.args, args...)
}

// labels asks for every one of the given labels.
func (s *selection) labels(kind, owner string, labels map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		s.add("EXISTS (SELECT 1 FROM labels WHERE kind = ? AND owner = "+owner+" AND key = ? AND value = ?)", kind, k, labels[k])
	}
}

// listPage reads one page of table, newest first. Rows are created_at, id and
// then the columns asked for.
func listPage[T any](c *conn, table, columns string, kind byte, sel selection, p sandbox.Page, read func(scan func(...any) error) (T, position, error)) (sandbox.List[T], error) {
	var out sandbox.List[T]
	from, err := parseCursor(kind, p.Cursor)
	if err != nil {
		return out, err
	}
	if p.Cursor != "" {
		sel.add("(created_at, id) < (?, ?)", from.at, from.id)
	}
	q := "SELECT created_at, id, " + columns + " FROM " + table
	if len(sel.where) > 0 {
		q += " WHERE " + strings.Join(sel.where, " AND ")
	}
	q += " ORDER BY created_at DESC, id DESC LIMIT ?"
	limit := limitOf(p)
	// One more than asked for tells whether there is a next page.
	var last position
	err = c.each(q, append(sel.args, limit+1), func(scan func(...any) error) error {
		v, pos, err := read(scan)
		if err != nil {
			return err
		}
		if len(out.Items) == limit {
			out.NextCursor = last.cursor(kind)
			return nil
		}
		out.Items, last = append(out.Items, v), pos
		return nil
	})
	return out, err
}
