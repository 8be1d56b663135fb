package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"cairn/api/client"
	"cairn/scripts/bench/baseline"
)

// fileCase names the case of n files in the sandbox.
func fileCase(n int) string { return fmt.Sprintf("%d files", n) }

// benchFiles measures every operation with a growing number of files in the sandbox.
func benchFiles(ctx context.Context, e *env) error {
	sizes := []int{100, 10_000, 100_000}
	if e.o.quick {
		sizes = []int{100, 10_000}
	}
	if err := e.floor(ctx); err != nil {
		return err
	}
	for _, n := range sizes {
		e.say("%d files", n)
		tar := filepath.Join(e.dir, "files.tar")
		if err := filesTar(tar, n); err != nil {
			return err
		}
		mine, err := e.fileOps(ctx, n, tar)
		if err != nil {
			return err
		}
		theirs, err := e.fileBaseline(ctx, n, tar)
		if err != nil {
			return fmt.Errorf("containerd: %w", err)
		}
		e.report.addOps(fileCase(n), mine, theirs)
		if n == sizes[0] {
			e.report.explain(mine)
		}
	}
	return nil
}

// floor measures what nothing can be faster than on this machine, now.
func (e *env) floor(ctx context.Context) error {
	var request, process series
	for range e.pick(50, 200) {
		if err := request.time(func() error { return client.Done(e.cairn.GetHealth(ctx)) }); err != nil {
			return err
		}
		if err := process.time(func() error { return exec.CommandContext(ctx, "true").Run() }); err != nil {
			return err
		}
	}
	e.report.add("GET /healthz", "", request, nil)
	e.report.add("true, started on the host", "", process, nil)
	return nil
}

// ops are measurements of the operations; those that a run leaves out are empty.
type ops struct {
	create, exec                    series
	checkpoint, freeze, checkpoint1 series
	skipped                         series
	restore, fork                   series

	// What the daemon says of its part.
	checkpointIn, restoreIn, restoreFreeze, execIn, forkIn series
}

// addOps records them, with containerd's own beside.
func (r *report) addOps(kase string, mine, theirs ops) {
	r.add("create, warm", kase, mine.create, theirs.create)
	r.add("exec true", kase, mine.exec, theirs.exec)
	r.add("checkpoint of new files", kase, mine.checkpoint1, theirs.checkpoint1)
	r.add("checkpoint", kase, mine.checkpoint, theirs.checkpoint)
	r.add("checkpoint freeze", kase, mine.freeze, nil)
	r.add("checkpoint, nothing new", kase, mine.skipped, nil)
	r.add("restore", kase, mine.restore, theirs.restore)
	r.add("fork, warm", kase, mine.fork, theirs.fork)
}

// explain records what the operations consist of, as far as the daemon says.
func (r *report) explain(o ops) {
	rest := func(whole, within series) part {
		return part{What: "the rest: HTTP, validation, JSON, both processes' scheduling", P50: whole.p50() - within.p50()}
	}
	checkpoint := []part{
		{What: "frozen: looking at the processes, switching the root", P50: o.freeze.p50()},
		{What: "before and after: empty upper, overlay made, metadata in two transactions", P50: o.checkpointIn.p50() - o.freeze.p50()},
		rest(o.checkpoint, o.checkpointIn),
	}
	restore := []part{
		{What: "frozen: killing, switching the root", P50: o.restoreFreeze.p50()},
		{What: "before and after: overlay made, metadata", P50: o.restoreIn.p50() - o.restoreFreeze.p50()},
		rest(o.restore, o.restoreIn),
	}
	exec := []part{{What: "from the start of the process to its end, inside", P50: o.execIn.p50()}, rest(o.exec, o.execIn)}
	for name, parts := range map[string][]part{
		"checkpoint": checkpoint, "checkpoint freeze": checkpoint, "restore": restore, "exec true": exec,
		"fork, warm": {{What: "in the daemon", P50: o.forkIn.p50()}, rest(o.fork, o.forkIn)},
	} {
		r.addParts(name, parts)
	}
}

// fileOps measures Cairn.
func (e *env) fileOps(ctx context.Context, n int, tar string) (o ops, err error) {
	var all []string
	defer func() { err = errors.Join(err, e.clear(context.WithoutCancel(ctx), all)) }()
	for range e.pick(3, 4) {
		if err := e.settled(ctx); err != nil {
			return o, err
		}
		var id string
		err := o.create.time(func() error {
			s, err := e.create(ctx)
			id = s.Id
			return err
		})
		if err != nil {
			return o, err
		}
		all = append(all, id)
		if n > 20_000 && len(all) > 1 {
			continue // one tree of that size is enough
		}
		if err := e.unpack(ctx, id, workDir, tar); err != nil {
			return o, err
		}
		// Every one of the files is new to this checkpoint.
		if err := o.checkpoint1.time(func() error { _, err := e.checkpoint(ctx, id); return err }); err != nil {
			return o, err
		}
	}
	if err := e.settled(ctx); err != nil {
		return o, err
	}
	rounds := e.pick(20, 60)
	return o, e.rounds(ctx, &o, all[0], rounds, e.pick(6, 24))
}

// rounds measures, again and again: exec, a change and a checkpoint of it, the same
// with nothing changed, restore to where it was, and then forks.
func (e *env) rounds(ctx context.Context, o *ops, id string, n, forks int) error {
	if err := e.write(ctx, id, workDir+"/change", "-"); err != nil {
		return err
	}
	home, err := e.checkpoint(ctx, id)
	if err != nil {
		return err
	}
	for i := range n {
		err := o.exec.time(func() error {
			took, err := e.execTimed(ctx, id, "true")
			o.execIn.add(took)
			return err
		})
		if err != nil {
			return err
		}
		if err := e.write(ctx, id, workDir+"/change", fmt.Sprint(i)); err != nil {
			return err
		}
		err = o.checkpoint.time(func() error {
			c, err := e.checkpoint(ctx, id)
			if err == nil && (c.Skipped || c.Method != "switch") {
				err = fmt.Errorf("checkpoint %s: skipped %t, method %q; it was to be switched", c.Id, c.Skipped, c.Method)
			}
			o.freeze.add(c.Timings.FreezeMs)
			o.checkpointIn.add(c.Timings.TotalMs)
			return err
		})
		if err != nil {
			return err
		}
		if err := o.skipped.time(func() error { _, err := e.checkpoint(ctx, id); return err }); err != nil {
			return err
		}
		err = o.restore.time(func() error {
			s, err := e.restore(ctx, id, home.Id)
			o.restoreIn.add(s.Timings.TotalMs)
			o.restoreFreeze.add(s.Timings.FreezeMs)
			return err
		})
		if err != nil {
			return err
		}
	}
	return e.forks(ctx, o, home.Id, n, forks)
}

// forks measures single forks, as many in a row as the pool has containers.
func (e *env) forks(ctx context.Context, o *ops, checkpoint string, n, row int) (err error) {
	var made []string
	defer func() { err = errors.Join(err, e.clear(context.WithoutCancel(ctx), made)) }()
	row = min(row, e.warm-2)
	for len(o.fork) < n/2 {
		if err := e.settled(ctx); err != nil {
			return err
		}
		for range row {
			err := o.fork.time(func() error {
				r, err := e.fork(ctx, checkpoint, 1)
				for _, f := range r {
					o.forkIn.add(f.Timings.TotalMs)
					if f.Sandbox != nil {
						made = append(made, f.Sandbox.Id)
					}
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		if err := e.clear(ctx, made); err != nil {
			return err
		}
		made = nil
	}
	return nil
}

// fileBaseline measures containerd.
func (e *env) fileBaseline(ctx context.Context, n int, tar string) (o ops, err error) {
	rounds := e.pick(4, 10)
	var k *baseline.Container
	for range rounds {
		if k != nil {
			if err := k.Delete(ctx); err != nil {
				return o, err
			}
		}
		if err := o.create.time(func() error { k, err = e.base.Create(ctx, e.snapshot); return err }); err != nil {
			return o, err
		}
	}
	work := k.Root() + workDir
	if err := os.Mkdir(work, 0o755); err != nil {
		return o, err
	}
	if err := baseline.Untar(ctx, tar, work); err != nil {
		return o, err
	}
	snapshot := ""
	keep := func() error {
		if err := k.End(ctx); err != nil {
			return err
		}
		if snapshot, err = k.Commit(ctx); err != nil {
			return err
		}
		k, err = e.base.Create(ctx, snapshot)
		return err
	}
	if err := o.checkpoint1.time(keep); err != nil {
		return o, err
	}
	for i := range rounds * 2 {
		if err := o.exec.time(func() error { return k.Run(ctx, "true") }); err != nil {
			return o, err
		}
		if i%2 != 0 {
			continue
		}
		if err := os.WriteFile(k.Root()+workDir+"/change", fmt.Append(nil, i), 0o644); err != nil {
			return o, err
		}
		if err := o.checkpoint.time(keep); err != nil {
			return o, err
		}
		err := o.restore.time(func() error {
			if err := k.Delete(ctx); err != nil {
				return err
			}
			k, err = e.base.Create(ctx, snapshot)
			return err
		})
		if err != nil {
			return o, err
		}
		var child *baseline.Container
		if err := o.fork.time(func() error { child, err = e.base.Create(ctx, snapshot); return err }); err != nil {
			return o, err
		}
		if err := child.Delete(ctx); err != nil {
			return o, err
		}
	}
	return o, k.Delete(ctx)
}
