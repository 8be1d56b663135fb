package workloads

import (
	"strconv"
	"strings"
	"testing"

	"cairn/api/types"
)

// TestPostgres has a server under load by pgbench, through a Unix socket: both are in the
// tree, so that their connections come back. It is forked three times. Each fork passes
// amcheck, has consistent tables, and goes its own way under load.
func TestPostgres(t *testing.T) {
	const bin = "/usr/lib/postgresql/17/bin/"
	sql := func(b *box, query string) string {
		b.t.Helper()
		return b.as("postgres", "psql -h /tmp -qAtX postgres <<'END'\n"+query+"\nEND")
	}
	transactions := func(b *box) int {
		b.t.Helper()
		return must(strconv.Atoi(sql(b, "SELECT count(*) FROM pgbench_history")))(b.t)
	}
	loaded := func(b *box) {
		b.t.Helper()
		was := transactions(b)
		b.eventually("the load goes on", func() bool { return transactions(b) > was+20 })
	}
	workload{
		forks: 3,
		start: func(b *box) []string {
			b.sh("install -d -o postgres -g postgres /var/lib/postgresql/d")
			b.as("postgres", bin+"initdb -D /var/lib/postgresql/d -A trust --locale=C -N >/tmp/initdb 2>&1 || { cat /tmp/initdb; false; }")
			server := b.starts(types.Exec{User: ptr("postgres"), Command: []string{
				bin + "postgres", "-D", "/var/lib/postgresql/d", "-k", "/tmp", "-c", "listen_addresses=127.0.0.1",
				"-c", "shared_buffers=128MB", "-c", "fsync=off", "-c", "jit=off", "-c", "max_parallel_workers_per_gather=2",
			}})
			b.eventually("it answers", func() bool { return b.tries("postgres", bin+"pg_isready", "-h", "/tmp") })
			b.as("postgres", bin+"pgbench -h /tmp -i -q -s 2 postgres 2>&1")
			sql(b, "CREATE EXTENSION amcheck; CREATE TABLE words (n serial PRIMARY KEY, word text)")
			load := b.starts(types.Exec{User: ptr("postgres"), Command: []string{
				bin + "pgbench", "-h", "/tmp", "-n", "-c", "4", "-j", "2", "-R", "200", "-T", "3600", "postgres",
			}})
			loaded(b)
			return []string{server, load}
		},
		state: func(b *box, _ []string) string { return sql(b, "SELECT string_agg(word, ',' ORDER BY n) FROM words") },
		change: func(b *box, _ []string, word string) {
			sql(b, "INSERT INTO words (word) VALUES ('"+word+"')")
			loaded(b)
		},
		revived: func(b *box, _ []string) {
			loaded(b)
			if sums := sql(b, "SELECT count(DISTINCT s) FROM (SELECT sum(abalance) s FROM pgbench_accounts UNION ALL SELECT sum(tbalance) FROM pgbench_tellers UNION ALL SELECT sum(bbalance) FROM pgbench_branches UNION ALL SELECT sum(delta) FROM pgbench_history) x"); sums != "1" {
				b.t.Errorf("the balances differ: %s", sums)
			}
			if said := b.as("postgres", bin+"pg_amcheck -h /tmp --heapallindexed --parent-check postgres 2>&1"); said != "" {
				b.t.Errorf("amcheck says %s", said)
			}
			if log := b.as("postgres", "psql -h /tmp -qAtX postgres -c 'SET debug_parallel_query = on' -c 'SELECT count(*) FROM pgbench_accounts'"); !strings.HasSuffix(log, "200000") {
				b.t.Errorf("a query with workers gives %s", log)
			}
		},
	}.cycle(t)
}
