package workloads

import (
	"strings"
	"testing"
)

// TestSQLite has a transaction open: its changes are in memory, its lock on the file
// keeps others from writing, before and after. Then it is committed.
func TestSQLite(t *testing.T) {
	for _, journal := range []string{"DELETE", "WAL"} {
		t.Run(journal, func(t *testing.T) {
			locked := func(b *box) bool {
				r := must(b.run("", "sqlite3", "/w/db", "INSERT INTO t (word) VALUES ('other')"))(b.t)
				return r.ExitCode != 0 && strings.Contains(r.Stderr, "locked")
			}
			w := talker("python3", "/w/sqlite.py", journal)
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
		})
	}
}
