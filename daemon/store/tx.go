package store

import (
	"bytes"
	"encoding/json"
	"fmt"

	"cairn/sandbox"
)

// tx implements sandbox.Tx on one connection inside a transaction.
type tx struct {
	c *conn
	s *Store
}

// encode is v as JSON for a data column.
func encode(v any) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // SQL reads some of it: the plain form is the same to both
	if err := e.Encode(v); err != nil {
		return "", fmt.Errorf("encode %T: %w", v, err)
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), nil
}

// encodeLabels is the labels column: an object, never null.
func encodeLabels(l map[string]string) (string, error) {
	if len(l) == 0 {
		return "{}", nil
	}
	return encode(l)
}

func decode[T any](data string) (T, error) {
	var v T
	if err := json.Unmarshal([]byte(data), &v); err != nil {
		return v, sandbox.Wrap(err, sandbox.CodeInternal, "a record of the metadata store is damaged")
	}
	return v, nil
}

// one reads the value in the only row of q, whose column is data.
func one[T any](c *conn, what, id, q string, args ...any) (T, error) {
	var data string
	found, err := c.get(q, args, &data)
	if err != nil {
		return *new(T), translate(err)
	}
	if !found {
		return *new(T), notFound(what, id)
	}
	return decode[T](data)
}

// all reads the values in the rows of q, whose column is data.
func all[T any](c *conn, q string, args ...any) ([]T, error) {
	var out []T
	err := c.each(q, args, func(scan func(...any) error) error {
		var data string
		if err := scan(&data); err != nil {
			return err
		}
		v, err := decode[T](data)
		if err != nil {
			return err
		}
		out = append(out, v)
		return nil
	})
	return out, translate(err)
}

// row reads created_at, id and data.
func row[T any](scan func(...any) error) (v T, p position, err error) {
	var data string
	if err := scan(&p.at, &p.id, &data); err != nil {
		return v, p, err
	}
	v, err = decode[T](data)
	return v, p, err
}

// change runs q, which must change a row; without one there is no what of that id.
func (t *tx) change(what, id, q string, args ...any) error {
	n, err := t.c.exec(q, args...)
	if err != nil {
		return translate(err)
	}
	if n == 0 {
		return notFound(what, id)
	}
	return nil
}
