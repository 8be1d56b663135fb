package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"cairn/api/client"
	"cairn/api/types"
)

// A server with 128 MB of shared buffers, all of them in use, and ten clients at work: its
// processes are 16, and those of pgbench come on top.
const postgresScript = `
export PATH=/usr/lib/postgresql/17/bin:$PATH
mkdir -p /tmp/pg && cd /tmp/pg
initdb -D data -A trust >/tmp/pg/log 2>&1
echo "listen_addresses = ''
unix_socket_directories = '/tmp/pg'
shared_buffers = 128MB
shared_preload_libraries = ''" >>data/postgresql.conf
pg_ctl -D data -l log -w start >>log 2>&1
createdb -h /tmp/pg bench && pgbench -h /tmp/pg -i -q -s 20 bench >>log 2>&1
psql -h /tmp/pg -Atc 'select sum(abalance) from pgbench_accounts' bench >>log
exec pgbench -h /tmp/pg -c 10 -R 50 -T 1000000 bench >>log 2>&1`

const postgresCase = "PostgreSQL, 16 processes, 128 MB shared"

// benchPostgres measures a larger program, if there is an image that has it.
func benchPostgres(ctx context.Context, e *env) error {
	if _, err := os.Stat(e.o.workloads); err != nil {
		e.say("postgres: left out: there is no %s", e.o.workloads)
		return nil
	}
	return e.withPrograms(ctx, e.o.workloads, func() error { return e.postgres(ctx) })
}

// postgres measures checkpoints and restores of a server at work.
func (e *env) postgres(ctx context.Context) (err error) {
	s, err := client.Get[types.Sandbox](e.cairn.CreateSandbox(ctx, nil, types.CreateSandbox{Image: processImage}))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.remove(context.WithoutCancel(ctx), s.Id)) }()
	yes, user := true, "100:100"
	_, err = client.Get[types.Process](e.cairn.Exec(ctx, s.Id, nil, types.Exec{
		Command: []string{"sh", "-ec", postgresScript}, Background: &yes, User: &user,
	}))
	if err != nil {
		return err
	}
	const atWork = `for i in $(seq 600); do [ $(grep -lsx postgres /proc/[0-9]*/comm | wc -l) -ge 16 ] && grep -qsx pgbench /proc/[0-9]*/comm && exit; sleep 0.1; done; cat /tmp/pg/log; exit 1`
	if err := e.exec(ctx, s.Id, "bash", "-c", atWork); err != nil {
		return fmt.Errorf("the server does not start: %w", err)
	}
	trace, err := e.trace()
	if err != nil {
		return err
	}
	defer trace.Close()
	var o processOps
	for i := range e.pick(3, 8) {
		if err := e.settled(ctx); err != nil {
			return err
		}
		if err := e.cycle(ctx, &o, s.Id, i); err != nil {
			return err
		}
	}
	if err := e.exec(ctx, s.Id, "bash", "-c", atWork); err != nil {
		return fmt.Errorf("the server is not what it was: %w", err)
	}
	if o.dumped, o.restored, err = trace.phases(); err != nil {
		return err
	}
	e.report.addProcessOps(postgresCase, o)
	e.report.explainProcesses(postgresCase, o)
	return nil
}
