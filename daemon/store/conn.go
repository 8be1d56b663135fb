package store

import (
	"context"
	"database/sql"
	"errors"
)

// maxStatements bounds what one connection keeps prepared: the statements of
// filtered lists depend on the filter.
const maxStatements = 200

// conn is one connection with the statements prepared on it so far. Its calls
// run on a context of their own: a statement takes microseconds, and a watched
// context would cost a goroutine for each.
type conn struct {
	c     *sql.Conn
	stmts map[string]*sql.Stmt
}

func newConn(ctx context.Context, db *sql.DB) (*conn, error) {
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{c: c, stmts: map[string]*sql.Stmt{}}, nil
}

func (c *conn) stmt(q string) (*sql.Stmt, error) {
	if s, ok := c.stmts[q]; ok {
		return s, nil
	}
	if len(c.stmts) >= maxStatements {
		for q, s := range c.stmts {
			if err := s.Close(); err != nil {
				return nil, err
			}
			delete(c.stmts, q)
		}
	}
	s, err := c.c.PrepareContext(context.Background(), q)
	if err != nil {
		return nil, err
	}
	c.stmts[q] = s
	return s, nil
}

// exec runs q and says how many rows it changed.
func (c *conn) exec(q string, args ...any) (int64, error) {
	r, err := c.run(q, args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

func (c *conn) run(q string, args ...any) (sql.Result, error) {
	s, err := c.stmt(q)
	if err != nil {
		return nil, err
	}
	return s.ExecContext(context.Background(), args...)
}

// get scans the only row of q; found is false when there is none.
func (c *conn) get(q string, args []any, dest ...any) (found bool, err error) {
	s, err := c.stmt(q)
	if err != nil {
		return false, err
	}
	err = s.QueryRowContext(context.Background(), args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// each calls fn for every row of q.
func (c *conn) each(q string, args []any, fn func(scan func(...any) error) error) (err error) {
	s, err := c.stmt(q)
	if err != nil {
		return err
	}
	rows, err := s.QueryContext(context.Background(), args...)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := rows.Close(); err == nil {
			err = cerr
		}
	}()
	for rows.Next() {
		if err := fn(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (c *conn) close() error {
	var errs []error
	for _, s := range c.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, c.c.Close())...)
}
