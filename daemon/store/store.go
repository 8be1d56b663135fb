package store

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"cairn/sandbox"
)

// Store is the metadata in one SQLite database.
type Store struct {
	opt     Options
	path    string
	db      *sql.DB
	writer  chan *conn // holds the writer while nobody uses it
	readers chan *conn // holds the readers that nobody uses
	closed  chan struct{}
	once    sync.Once
	trim    trimmer // used by the holder of the writer only

	commits atomic.Int64 // transactions committed so far
	sync    syncer
	log     backfiller
}

// Update runs fn in the one transaction that may change things. Calls queue for
// it in order; fn must not call Update, which would wait for itself. A context
// that ends while waiting gives up; once fn runs it runs to its end.
func (s *Store) Update(ctx context.Context, fn func(sandbox.Tx) error) error {
	return s.write(ctx, func(c *conn) error { return fn(&tx{c: c, s: s}) })
}

// View runs fn on one unchanging state of the database. Changes in it fail.
func (s *Store) View(ctx context.Context, fn func(sandbox.Tx) error) error {
	c, err := s.take(ctx, s.readers)
	if err != nil {
		return err
	}
	defer func() { s.readers <- c }()
	return transact(c, "BEGIN", func(c *conn) error { return fn(&tx{c: c, s: s}) })
}

func (s *Store) write(ctx context.Context, fn func(*conn) error) error {
	c, err := s.take(ctx, s.writer)
	if err != nil {
		return err
	}
	defer func() { s.writer <- c }()
	if err := transact(c, "BEGIN IMMEDIATE", fn); err != nil {
		return err
	}
	s.log.committed(s.commits.Add(1))
	return nil
}

// take waits for a connection. The caller puts it back.
func (s *Store) take(ctx context.Context, from chan *conn) (*conn, error) {
	select {
	case <-s.closed:
		return nil, errClosed
	default:
	}
	if err := ctx.Err(); err != nil {
		return nil, translate(err)
	}
	select {
	case c := <-from:
		return c, nil
	case <-s.closed:
		return nil, errClosed
	case <-ctx.Done():
		return nil, translate(ctx.Err())
	}
}

// transact runs fn between begin and COMMIT, or ROLLBACK when it fails or panics.
func transact(c *conn, begin string, fn func(*conn) error) error {
	if _, err := c.run(begin); err != nil {
		return translate(err)
	}
	open := true
	defer func() {
		if open {
			// SQLite has rolled back by itself after some errors; then this one fails, rightly.
			_, _ = c.run("ROLLBACK")
		}
	}()
	if err := fn(c); err != nil {
		return err
	}
	if _, err := c.run("COMMIT"); err != nil {
		return translate(err)
	}
	open = false
	return nil
}

// Close waits for the transactions that run and closes the database. Calls
// that come later, or still queue, get CodeUnavailable.
func (s *Store) Close() error {
	var errs []error
	s.once.Do(func() {
		close(s.closed)
		errs = append(errs, s.log.stop())
		for range cap(s.readers) {
			errs = append(errs, (<-s.readers).close())
		}
		// The writer is last: closing the last connection moves the log into the database.
		errs = append(errs, (<-s.writer).close(), s.sync.close(), s.db.Close())
	})
	return errors.Join(errs...)
}

// Options are the store's settings; zero fields have the defaults given.
type Options struct {
	Now            func() time.Time // clock, time.Now
	Logger         *slog.Logger     // nothing is logged without one
	KeepEvents     int              // newest events kept, 100,000
	KeepProcesses  int              // finished processes kept of each sandbox, 1,000
	Readers        int              // connections for View, 4
	LogBytes       int64            // size of the log from which it is backfilled, 16 MiB
	IdempotencyFor time.Duration    // how long an idempotency record is kept, 24 h
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.KeepEvents = orDefault(o.KeepEvents, 100_000)
	o.KeepProcesses = orDefault(o.KeepProcesses, 1000)
	o.Readers = orDefault(o.Readers, 4)
	o.LogBytes = orDefault(o.LogBytes, 16<<20)
	o.IdempotencyFor = orDefault(o.IdempotencyFor, 24*time.Hour)
	return o
}

func orDefault[T int | int64 | time.Duration](v, def T) T {
	if v <= 0 {
		return def
	}
	return v
}

// size is the size of the file at path in bytes, 0 when there is none.
func size(path string) int64 {
	st, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return st.Size()
}
