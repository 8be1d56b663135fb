package store

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"cairn/sandbox"
)

// Sync makes everything committed before the call survive the host. It flushes
// the log file, which holds whatever a backfill has not already flushed into
// the database. Calls at the same time share one flush; with nothing new it costs
// nothing.
func (s *Store) Sync(ctx context.Context) error {
	select {
	case <-s.closed:
		return errClosed
	default:
	}
	if err := ctx.Err(); err != nil {
		return translate(err)
	}
	if err := s.sync.upTo(s.commits.Load(), s.commits.Load); err != nil {
		return sandbox.Wrap(err, sandbox.CodeInternal, "the metadata could not be flushed to the disk")
	}
	return nil
}

// syncer flushes the log. The file stays the same as long as a connection is
// open; SQLite locks the other two files, never this one, so a descriptor
// of our own does no harm.
type syncer struct {
	mu   sync.Mutex
	file *os.File
	done int64 // commits known to be flushed
	err  error // a flush that failed once: the kernel may have dropped the pages, so it stays
}

func (y *syncer) open(path string) error {
	f, err := os.OpenFile(path+"-wal", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	y.file = f
	// The names of the database and of the log are part of what must survive.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// upTo flushes unless n commits are flushed already. Whoever waits for the lock
// meanwhile mostly finds its commits flushed by the one before.
func (y *syncer) upTo(n int64, now func() int64) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.err != nil {
		return y.err
	}
	if y.done >= n {
		return nil
	}
	if y.file == nil {
		return os.ErrClosed
	}
	covers := now()
	if err := y.file.Sync(); err != nil {
		y.err = err
		return err
	}
	y.done = covers
	return nil
}

func (y *syncer) close() error {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.file == nil {
		return nil
	}
	err := y.file.Close()
	y.file = nil
	return err
}

// checkEvery is after how many commits the log's size is looked at.
const checkEvery = 64

// backfiller moves the log into the database in the background.
type backfiller struct {
	wake chan struct{}
	quit chan struct{}
	done chan struct{}
	err  error
}

func (b *backfiller) start(s *Store) {
	b.wake, b.quit, b.done = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	go b.run(s)
}

// committed is told the number of each commit.
func (b *backfiller) committed(n int64) {
	if n%checkEvery != 0 {
		return
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *backfiller) run(s *Store) {
	defer close(b.done)
	ctx := context.Background()
	c, err := newConn(ctx, s.db)
	if err != nil {
		b.err = err
		s.opt.Logger.Error("metadata log is not backfilled", slog.Any("error", err))
		return
	}
	defer func() { b.err = c.close() }()
	for {
		select {
		case <-b.quit:
			return
		case <-b.wake:
		}
		if size(s.path+"-wal") < s.opt.LogBytes {
			continue
		}
		if err := s.backfill(c); err != nil {
			s.opt.Logger.Warn("metadata log could not be backfilled; trying again later", slog.Any("error", err))
		}
	}
}

// backfill copies the log into the database without stopping anyone. The
// writer then begins the log anew, at the same size. When a reader that never
// rests has kept the log from being begun anew for long, the writer is held for
// a moment and the log is cut.
func (s *Store) backfill(c *conn) error {
	mode := "PASSIVE"
	if size(s.path+"-wal") > 8*s.opt.LogBytes {
		select {
		case w := <-s.writer:
			defer func() { s.writer <- w }()
			mode = "TRUNCATE"
		case <-s.closed:
			return nil
		}
	}
	var busy, pages, moved int64
	if _, err := c.get("PRAGMA wal_checkpoint("+mode+")", nil, &busy, &pages, &moved); err != nil {
		return err
	}
	s.opt.Logger.Debug("metadata log backfilled", slog.String("mode", mode), slog.Int64("pages", pages), slog.Int64("moved", moved))
	return nil
}

// stop ends the background work and waits for it.
func (b *backfiller) stop() error {
	close(b.quit)
	<-b.done
	return b.err
}
