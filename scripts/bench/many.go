package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"cairn/scripts/bench/baseline"
)

// atOnce runs f for 0 to n-1, so many at a time, and gives how long each took.
func atOnce(n, parallel int, f func(i int) error) (series, error) {
	var (
		mu   sync.Mutex
		all  series
		errs []error
		wg   sync.WaitGroup
	)
	slots := make(chan struct{}, parallel)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			began := time.Now()
			err := f(i)
			mu.Lock()
			defer mu.Unlock()
			all.add(ms(time.Since(began)))
			errs = append(errs, err)
		})
	}
	wg.Wait()
	return all, errors.Join(errs...)
}

// benchCold measures create and fork with an empty pool.
func benchCold(ctx context.Context, e *env) error {
	e.say("cold: no blank containers")
	if err := e.configure(ctx, 0, 0); err != nil {
		return err
	}
	if err := e.settled(ctx); err != nil {
		return err
	}
	var create, fork, theirs series
	for range e.pick(5, 20) {
		var id string
		if err := create.time(func() error { s, err := e.create(ctx); id = s.Id; return err }); err != nil {
			return err
		}
		c, err := e.checkpoint(ctx, id)
		if err == nil && c.Id == "" {
			err = errors.New("a checkpoint without an id")
		}
		if err != nil {
			return err
		}
		var child string
		err = fork.time(func() error {
			r, err := e.fork(ctx, c.Id, 1)
			if err == nil {
				child = r[0].Sandbox.Id
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := e.clear(ctx, []string{id, child}); err != nil {
			return err
		}
		var k *baseline.Container
		if err := theirs.time(func() error { k, err = e.base.Create(ctx, e.snapshot); return err }); err != nil {
			return err
		}
		if err := k.Delete(ctx); err != nil {
			return err
		}
	}
	e.report.add("create, cold", "", create, theirs)
	e.report.add("fork, cold", "", fork, theirs)
	return e.configure(ctx, warmNow, 0)
}

// benchBurst measures 64 forks in one request, from a pool that holds them.
func benchBurst(ctx context.Context, e *env) error {
	const n = 64
	e.say("%d forks at once", n)
	if err := e.configure(ctx, n, 0); err != nil {
		return err
	}
	s, err := e.create(ctx)
	if err != nil {
		return err
	}
	if err := e.write(ctx, s.Id, workDir+"/file", "text"); err != nil {
		return err
	}
	c, err := e.checkpoint(ctx, s.Id)
	if err != nil {
		return err
	}
	var total, each series
	for range e.pick(1, 3) {
		if err := e.settled(ctx); err != nil {
			return err
		}
		var children []string
		err := total.time(func() error {
			r, err := e.fork(ctx, c.Id, n)
			for _, f := range r {
				each.add(f.Timings.TotalMs)
				if f.Sandbox != nil {
					children = append(children, f.Sandbox.Id)
				}
			}
			return err
		})
		if err != nil {
			return err
		}
		if _, err := atOnce(len(children), parallel, func(i int) error { return e.remove(ctx, children[i]) }); err != nil {
			return err
		}
	}
	var theirs series
	containers := make([]*baseline.Container, n)
	err = theirs.time(func() error {
		_, err := atOnce(n, parallel, func(i int) (err error) {
			containers[i], err = e.base.Create(ctx, e.snapshot)
			return err
		})
		return err
	})
	if err != nil {
		return err
	}
	if _, err := atOnce(n, parallel, func(i int) error { return containers[i].Delete(ctx) }); err != nil {
		return err
	}
	e.report.add("64 forks at once", "", total, theirs)
	e.report.add("64 forks at once", "each, as the daemon says", each, nil)
	if err := e.remove(ctx, s.Id); err != nil {
		return err
	}
	return e.configure(ctx, warmNow, 0)
}

// parallel is how many requests are under way at once where many are made.
const parallel = 8

// benchMany measures memory, and how a machine full of sandboxes fares.
func benchMany(ctx context.Context, e *env) error {
	n := e.pick(50, 200)
	e.say("memory, and %d sandboxes at once", n)
	if err := e.configure(ctx, 0, 0); err != nil {
		return err
	}
	if err := e.settled(ctx); err != nil {
		return err
	}
	before, err := available()
	if err != nil {
		return err
	}
	ids := make([]string, n)
	began := time.Now()
	make1 := func(i int) error {
		s, err := e.create(ctx)
		ids[i] = s.Id
		return err
	}
	if err := make1(0); err != nil {
		return err
	}
	if err := e.memory("pss, 1 sandbox"); err != nil {
		return err
	}
	create, err := atOnce(n-1, parallel, func(i int) error { return make1(i + 1) })
	if err != nil {
		return err
	}
	took := time.Since(began)
	exec, err := atOnce(n, parallel, func(i int) error { return e.exec(ctx, ids[i], "true") })
	if err != nil {
		return err
	}
	if err := e.memory(fmt.Sprintf("pss, %d sandboxes", n)); err != nil {
		return err
	}
	after, err := available()
	if err != nil {
		return err
	}
	list, err := e.sandboxes(ctx)
	if err != nil {
		return err
	}
	running := 0
	for _, s := range list {
		if s.State == "running" {
			running++
		}
	}
	const mb = 1 << 20
	e.report.addUnit("memory of an idle sandbox", "of the whole machine", "MB", series{float64(before-after) / mb / float64(n)}, nil)
	e.report.addUnit("sandboxes at once", fmt.Sprintf("running of %d", n), "", series{float64(running)}, nil)
	e.report.addUnit("sandboxes at once", "all made, cold", "s", series{took.Seconds()}, nil)
	e.report.add("create, cold", fmt.Sprintf("%d at a time", parallel), create, nil)
	e.report.add("exec true", fmt.Sprintf("%d at a time in %d sandboxes", parallel, n), exec, nil)
	var one series
	for i := range n {
		if err := one.time(func() error { return e.exec(ctx, ids[i], "true") }); err != nil {
			return err
		}
	}
	e.report.add("exec true", fmt.Sprintf("one at a time in %d sandboxes", n), one, nil)
	remove, err := atOnce(n, parallel, func(i int) error { return e.remove(ctx, ids[i]) })
	if err != nil {
		return err
	}
	e.report.add("delete", fmt.Sprintf("%d at a time", parallel), remove, nil)
	if err := e.baselineMemory(ctx); err != nil {
		return err
	}
	return e.configure(ctx, warmNow, 0)
}

// memory records what the containers of Cairn take now, each.
func (e *env) memory(kase string) error {
	pss, n, err := pssOfContainers(e.socket())
	if err != nil {
		return err
	}
	return e.addMemory(kase, pss, n)
}

// socket is that of Cairn's containerd.
func (e *env) socket() string { return filepath.Join(e.cairn.Root(), "run", "containerd.sock") }

// pss is the memory of all containers of Cairn, bytes.
func (e *env) pss() (int64, error) {
	pss, _, err := pssOfContainers(e.socket())
	return pss, err
}

func (e *env) addMemory(kase string, pss int64, n int) error {
	if n == 0 {
		return errors.New("no shim is running, so that no memory can be measured")
	}
	const mb = 1 << 20
	e.report.addUnit("memory of an idle sandbox", kase, "MB", series{float64(pss) / float64(n) / mb}, nil)
	return nil
}

// baselineMemory records what one container of the other containerd takes.
func (e *env) baselineMemory(ctx context.Context) error {
	k, err := e.base.Create(ctx, e.snapshot)
	if err != nil {
		return err
	}
	pss, n, err := pssOfContainers(filepath.Join(e.dir, "b", "containerd.sock"))
	if err != nil {
		return err
	}
	if err := e.addMemory("pss, containerd's own with `sleep`", pss, n); err != nil {
		return err
	}
	return k.Delete(ctx)
}
