package demo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"cairn/api/client"
	"cairn/api/types"
	"cairn/scripts/bench/baseline"
)

// attempt is one idea of how to fix the bug.
type attempt struct {
	idea, condition string

	sandbox types.Sandbox
	passed  bool
	line    string
	took    time.Duration
	diff    string
	err     error
}

// fork tries three fixes at once and keeps the one that works.
func (d *demo) fork(ctx context.Context) error {
	d.heading("It forks three ways. Each fork tries another fix and runs the tests.")
	attempts := []*attempt{
		{idea: "prefer what was found last", condition: "vu_dist > seen[u]"},
		{idea: "take ties, too", condition: "vu_dist <= seen[u]"},
		{idea: "prefer what is shorter", condition: "vu_dist < seen[u]"},
	}
	if err := d.makeForks(ctx, attempts); err != nil {
		return err
	}
	var wg sync.WaitGroup
	for _, a := range attempts {
		wg.Go(func() { a.err = d.try(ctx, a) })
	}
	wg.Wait()
	winners := 0
	var winner *attempt
	for _, a := range attempts {
		if a.err != nil {
			return fmt.Errorf("%s: %w", a.sandbox.Name, a.err)
		}
		d.say("  %s: %s\n%s\n      tests: %s (%s)", a.sandbox.Name, a.idea, indent(a.diff), a.line, short(a.took))
		if a.passed {
			winners++
			winner = a
		}
	}
	d.prove(winners == 1, "the tests of exactly one fork pass", "")
	if winner == nil {
		return nil
	}
	return d.keep(ctx, attempts, winner)
}

func (d *demo) makeForks(ctx context.Context, attempts []*attempt) error {
	n, name := len(attempts), "try"
	took, err := timed(func() error {
		r, err := client.Get[types.ForkResults](d.cairn.ForkCheckpoint(ctx, d.good, nil, types.Fork{Count: &n, Name: &name}))
		for i, f := range r.Items {
			if f.Sandbox == nil {
				return fmt.Errorf("fork %d: %s", i+1, f.Error.Detail)
			}
			attempts[i].sandbox = *f.Sandbox
		}
		return err
	})
	if err != nil {
		return err
	}
	children := make([]*baseline.Container, n)
	theirs, err := timed(func() error {
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { children[i], errs[i] = d.base.Create(ctx, d.committed) })
		}
		wg.Wait()
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	d.op("fork three ways", took, theirs, "three new containers from the snapshot")
	for _, k := range children {
		if err := k.Delete(ctx); err != nil {
			return err
		}
	}
	return nil
}

// try applies a fix in a fork, runs the tests and compares with the checkpoint.
func (d *demo) try(ctx context.Context, a *attempt) (err error) {
	fix := fmt.Sprintf("sed -i 's/elif u not in seen:/elif u not in seen or %s:/' %s", a.condition, broken)
	if _, err := d.must(ctx, a.sandbox.Id, project, fix); err != nil {
		return err
	}
	if a.passed, a.line, a.took, err = d.test(ctx, a.sandbox.Id); err != nil {
		return err
	}
	path := project + "/" + broken
	diff, err := client.Get[types.Diff](d.cairn.DiffSandbox(ctx, a.sandbox.Id, &types.DiffSandboxParams{From: &d.good, Path: &path}))
	if err == nil && diff.Diff != nil {
		a.diff = changed(*diff.Diff)
	}
	return err
}

// keep commits the work of the one that passed, and deletes the others.
func (d *demo) keep(ctx context.Context, attempts []*attempt, winner *attempt) error {
	d.heading("It keeps " + winner.sandbox.Name + " and deletes the others.")
	for _, a := range attempts {
		if a == winner {
			continue
		}
		var k *baseline.Container
		took, err := timed(func() error { return client.Done(d.cairn.DeleteSandbox(ctx, a.sandbox.Id)) })
		if err != nil {
			return err
		}
		if k, err = d.base.Create(ctx, d.committed); err != nil {
			return err
		}
		theirs, err := timed(func() error { return k.Delete(ctx) })
		if err != nil {
			return err
		}
		d.op("delete "+a.sandbox.Name, took, theirs, "kill, delete the task, container, snapshot")
	}
	if _, err := d.must(ctx, winner.sandbox.Id, project, "git -c user.name=agent -c user.email=agent@example.org commit -qam 'Fix Dijkstra'"); err != nil {
		return err
	}
	name := "fixed"
	c, err := client.Get[types.Checkpoint](d.cairn.CreateCheckpoint(ctx, winner.sandbox.Id, nil, types.CreateCheckpoint{Name: &name, Wait: new(types.CreateCheckpointWaitDurable)}))
	if err != nil {
		return err
	}
	if _, err := client.Get[types.Checkpoint](d.cairn.VerifyCheckpoint(ctx, c.Id, nil, types.VerifyCheckpoint{})); err != nil {
		return err
	}
	now, err := d.read(ctx, d.sandbox, work, nil)
	if err != nil {
		return err
	}
	d.prove(d.before.differing(now) == 0, "the forks left the sandbox they came from alone", "")
	d.prove(c.Durability == types.DurabilityDurable && c.Digest != "", "the fix is in a durable, verified checkpoint", ": "+c.Digest)
	return nil
}
