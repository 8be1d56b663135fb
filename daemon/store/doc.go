// Package store keeps Cairn's metadata in one SQLite database. It implements
// sandbox.Store, and keeps the records behind the API's idempotency keys.
//
// Vocabulary. The writer is the one connection that changes the database;
// readers are a small pool of connections that cannot. The log is SQLite's
// write-ahead log beside the database. A backfill moves the log's pages into
// the database (SQLite calls that a checkpoint, a word that means something
// else here).
//
// Invariants:
//
//   - A committed transaction is in the log, in the page cache at least: it
//     survives a kill of the daemon. After Sync it survives the host.
//   - A commit waits for no disk: backfills, which do, run in the background.
//   - Each row's data column holds the domain value as JSON. Columns beside it
//     repeat what is filtered, joined or ordered by, and are written by the same
//     statement. References to layers are read from that JSON when asked for, so
//     they cannot disagree with it.
//   - What would grow for ever is trimmed: events, finished processes,
//     idempotency records.
//
// Two daemons on one database are kept apart by the daemon's lock file, not here.
package store
