package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"github.com/pressly/goose/v3"
	sqlite3 "modernc.org/sqlite/lib"
)

// applicationID marks a database as Cairn's ("crn1").
const applicationID = 0x63726e31

// cacheKiB is the size of a connection's page cache.
const cacheKiB = 8192

//go:embed migrations/*.sql
var migrations embed.FS

// Open opens the database at path, making or migrating it as needed. The
// directory must exist. A damaged or foreign file is a *CorruptError, one of a
// newer version a *NewerError: neither is changed.
func Open(ctx context.Context, path string, o Options) (_ *Store, err error) {
	o = o.withDefaults()
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open metadata store: %w", err)
	}
	// The file is made here so that it is nobody else's to read from its first instant.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open metadata store: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("open metadata store: %w", err)
	}
	if err := inspect(ctx, path); err != nil {
		return nil, err
	}

	db, err := sql.Open("sqlite", dsn(path, "journal_mode(WAL)"))
	if err != nil {
		return nil, fmt.Errorf("open metadata store: %w", err)
	}
	s := &Store{
		opt: o, path: path, db: db,
		writer:  make(chan *conn, 1),
		readers: make(chan *conn, o.Readers),
		closed:  make(chan struct{}),
		trim:    trimmer{finished: map[string]int{}},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.abandon())
		}
	}()
	if err := migrate(ctx, db); err != nil {
		return nil, fmt.Errorf("migrate metadata store: %w", err)
	}
	w, err := newConn(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("open metadata store: %w", err)
	}
	s.writer <- w
	for range o.Readers {
		r, err := newConn(ctx, db)
		if err != nil {
			return nil, fmt.Errorf("open metadata store: %w", err)
		}
		s.readers <- r
		if _, err := r.run("PRAGMA query_only = 1"); err != nil {
			return nil, fmt.Errorf("open metadata store: %w", err)
		}
	}
	// The first write also makes the log file, which Sync needs.
	if err := transact(w, "BEGIN IMMEDIATE", s.releasePending); err != nil {
		return nil, fmt.Errorf("open metadata store: %w", err)
	}
	if err := s.sync.open(path); err != nil {
		return nil, fmt.Errorf("open metadata store: %w", err)
	}
	s.log.start(s)
	return s, nil
}

// abandon closes what a failed Open had opened.
func (s *Store) abandon() error {
	var errs []error
	close(s.readers)
	for c := range s.readers {
		errs = append(errs, c.close())
	}
	close(s.writer)
	for c := range s.writer {
		errs = append(errs, c.close())
	}
	return errors.Join(append(errs, s.sync.close(), s.db.Close())...)
}

func dsn(path string, more ...string) string {
	q := url.Values{"_txlock": {"immediate"}}
	for _, p := range append([]string{
		"busy_timeout(10000)",
		"synchronous(NORMAL)",
		"foreign_keys(1)",
		"wal_autocheckpoint(0)", // done by the backfiller, off the path of commits
		fmt.Sprintf("cache_size(-%d)", cacheKiB),
		"temp_store(MEMORY)",
		"trusted_schema(0)",
		"cell_size_check(1)",
	}, more...) {
		q.Add("_pragma", p)
	}
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}).String()
}

// inspect refuses, before anything is written, a file that is not a database
// that this program can go on with.
func inspect(ctx context.Context, path string) (err error) {
	if size(path) == 0 && size(path+"-wal") == 0 {
		return nil
	}
	db, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		return fmt.Errorf("open metadata store: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1)

	var tables, appID int64
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
		return damaged(path, err)
	}
	if tables == 0 {
		return nil
	}
	if err := db.QueryRowContext(ctx, "PRAGMA application_id").Scan(&appID); err != nil {
		return damaged(path, err)
	}
	if appID != applicationID {
		return &CorruptError{Path: path, What: "it is a SQLite database of another program"}
	}
	var report string
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&report); err != nil {
		return damaged(path, err)
	}
	if report != "ok" {
		return &CorruptError{Path: path, What: "it is damaged: " + report}
	}
	p, err := provider(db)
	if err != nil {
		return err
	}
	has, err := p.GetDBVersion(ctx)
	if err != nil {
		return damaged(path, err)
	}
	sources := p.ListSources()
	if knows := sources[len(sources)-1].Version; has > knows {
		return &NewerError{Path: path, Has: has, Knows: knows}
	}
	return nil
}

func damaged(path string, err error) error {
	switch primary(err) {
	case sqlite3.SQLITE_NOTADB:
		return &CorruptError{Path: path, What: "it is not a SQLite database"}
	case sqlite3.SQLITE_CORRUPT:
		return &CorruptError{Path: path, What: "it is damaged: " + err.Error()}
	default:
		return fmt.Errorf("open metadata store: %w", err)
	}
}

func provider(db *sql.DB) (*goose.Provider, error) {
	sub, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, fmt.Errorf("metadata migrations: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, sub, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("metadata migrations: %w", err)
	}
	return p, nil
}

func migrate(ctx context.Context, db *sql.DB) error {
	p, err := provider(db)
	if err != nil {
		return err
	}
	// Said before the first table: a crash in between leaves an empty database.
	if _, err := db.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id = %d", applicationID)); err != nil {
		return err
	}
	_, err = p.Up(ctx)
	return err
}
