package workloads

import (
	"strings"
	"testing"

	"cairn/api/client"
	"cairn/api/types"
)

// TestSQLite has a transaction open: its changes are in memory, its lock on the file
// keeps others from writing, before and after. Then it is committed.
func TestSQLite(t *testing.T) {
	locked := func(b *box) bool {
		r := must(b.run("", "sqlite3", "/w/db", "INSERT INTO t (word) VALUES ('other')"))(b.t)
		return r.ExitCode != 0 && strings.Contains(r.Stderr, "locked")
	}
	w := talker("python3", "/w/sqlite.py", "DELETE")
	state := w.state
	w.state = func(b *box, ids []string) string {
		if !locked(b) {
			b.t.Error("the file is not locked")
		}
		return state(b, ids) + ", others see " + b.sh("sqlite3 /w/db 'SELECT count(*) FROM t'")
	}
	change := w.change
	w.change = func(b *box, ids []string, word string) {
		change(b, ids, word)
		if word != "first" { // which stays uncommitted
			b.asks(ids[0], "commit", `<(.*)>`)
			if got := b.sh("sqlite3 /w/db 'PRAGMA integrity_check'"); got != "ok" {
				b.t.Errorf("the database's check says %s", got)
			}
		}
	}
	w.cycle(t)
}

// TestSQLiteWAL shows that a process with a lock on a file that it has mapped, as SQLite
// has with a write-ahead log, is refused and goes on; closing the database is enough.
func TestSQLiteWAL(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	id := b.daemon("python3", "/w/sqlite.py", "WAL")
	was := b.asks(id, "word", `<(.*)>`)
	_, err := b.tryCheckpoint()
	if client.CodeOf(err) != types.Unsupported || !strings.Contains(err.Error(), "/w/db-shm") {
		t.Fatalf("a lock on a mapped file: %v", err)
	}
	if got := b.asks(id, "?", `<(.*)>`); got != was {
		t.Errorf("refused, it has %s, expected %s", got, was)
	}
	b.asks(id, "close", `<(.*)>`)
	b.restore(b.checkpoint().Id)
	if got := b.sh("sqlite3 /w/db 'PRAGMA integrity_check; SELECT count(*) FROM t'"); got != "ok\n10" {
		t.Errorf("the database has %s", got)
	}
}
