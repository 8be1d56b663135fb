package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"cairn/api/client"
	"cairn/api/types"
	"cairn/scripts/bench/baseline"
)

// processImage is the image whose sandboxes run programs.
const processImage = "processes"

// A Python program with so much memory of its own, in megabytes, on top of the
// interpreter's 5.
const python = `
import os, time
x = bytearray(os.urandom(%d << 20))
open('/ready', 'w').close()
while True: time.sleep(0.1)`

func pythonCase(mb int) string { return fmt.Sprintf("%d MB", mb+interpreter) }

const (
	interpreter = 5
	larger      = 50
	largest     = 200
)

// benchProcesses measures checkpoints, restores and forks with the processes.
func benchProcesses(ctx context.Context, e *env) error {
	image := e.processImage()
	if image == "" {
		e.say("processes: left out: neither %s nor %s is there", e.o.workloads, e.o.demo)
		return nil
	}
	snapshot, err := e.base.Import(ctx, func(dir string) error { return baseline.Untar(ctx, image, dir) })
	if err != nil {
		return err
	}
	return e.withPrograms(ctx, image, func() error {
		var mine []processOps
		for _, mb := range []int{0, larger, largest} {
			e.say("processes: python, %s", pythonCase(mb))
			o, err := e.pythonOps(ctx, snapshot, mb)
			if err != nil {
				return fmt.Errorf("python, %s: %w", pythonCase(mb), err)
			}
			e.report.addProcessOps(pythonCase(mb), o)
			mine = append(mine, o)
		}
		e.report.explainProcesses(pythonCase(0), mine[0])
		e.report.explainProcesses(pythonCase(largest), mine[2])
		e.report.addSlopes([]float64{0, larger, largest}, mine)
		if err := e.forksWithProcesses(ctx, snapshot); err != nil {
			return fmt.Errorf("forks: %w", err)
		}
		if err := e.hibernation(ctx); err != nil {
			return fmt.Errorf("hibernation: %w", err)
		}
		return nil
	})
}

// withPrograms runs f with an image of programs and a daemon that tells what its
// operations consist of.
func (e *env) withPrograms(ctx context.Context, image string, f func() error) (err error) {
	if !e.programs {
		e.say("importing %s", image)
		if err := e.importImage(ctx, processImage, image); err != nil {
			return err
		}
		e.programs = true
	}
	e.log = "debug"
	defer func() {
		e.log = ""
		err = errors.Join(err, e.configure(ctx, warmNow, 0))
	}()
	if err := e.configure(ctx, warmNow, 0); err != nil {
		return err
	}
	return f()
}

// processImage is the one with most programs that is there, "" for none.
func (e *env) processImage() string {
	for _, p := range []string{e.o.workloads, e.o.demo} {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	return ""
}

// processOps are measurements of the operations with processes, and of containerd's own.
type processOps struct {
	checkpoint, stop, restore, restoreStop, bytes series
	theirs                                        ops
	dumped, restored                              phases
}

func (r *report) addProcessOps(kase string, o processOps) {
	r.add("checkpoint, processes", kase, o.checkpoint, o.theirs.checkpoint)
	r.add("... stop", kase, o.stop, nil)
	r.add("restore, processes", kase, o.restore, o.theirs.restore)
	r.add("... stop", kase+", restore", o.restoreStop, nil)
	r.addUnit("... images", kase, "MB", o.bytes, nil)
}

// python starts the program in a new sandbox.
func (e *env) python(ctx context.Context, mb int) (id string, err error) {
	s, err := client.Get[types.Sandbox](e.cairn.CreateSandbox(ctx, nil, types.CreateSandbox{Image: processImage}))
	if err != nil {
		return "", err
	}
	if err := e.start(ctx, s.Id, "python3", "-c", fmt.Sprintf(python, mb)); err != nil {
		return s.Id, err
	}
	return s.Id, e.exec(ctx, s.Id, "sh", "-c", "until [ -e /ready ]; do :; done")
}

// pythonOps measures checkpoints and restores in place, one of Cairn's after one of
// containerd's.
func (e *env) pythonOps(ctx context.Context, snapshot string, mb int) (o processOps, err error) {
	id, err := e.python(ctx, mb)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, e.remove(context.WithoutCancel(ctx), id)) }()
	k, err := e.base.Create(ctx, snapshot, "python3", "-c", fmt.Sprintf(python, mb))
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, k.Delete(context.WithoutCancel(ctx))) }()
	if err := k.Run(ctx, "sh", "-c", "until [ -e /ready ]; do :; done"); err != nil {
		return o, err
	}
	trace, err := e.trace()
	if err != nil {
		return o, err
	}
	defer trace.Close()
	for i := range e.pick(6, 20) {
		if err := e.settled(ctx); err != nil {
			return o, err
		}
		if err := e.cycle(ctx, &o, id, i); err != nil {
			return o, err
		}
		var images baseline.Images
		if err := o.theirs.checkpoint.time(func() error { images, err = k.Checkpoint(ctx); return err }); err != nil {
			return o, fmt.Errorf("containerd: %w", err)
		}
		if err := o.theirs.restore.time(func() error { return k.Restore(ctx, images) }); err != nil {
			return o, fmt.Errorf("containerd: %w", err)
		}
	}
	o.dumped, o.restored, err = trace.phases()
	return o, err
}

// cycle changes a file, takes a checkpoint, changes it again and restores.
func (e *env) cycle(ctx context.Context, o *processOps, id string, i int) error {
	if err := e.write(ctx, id, workDir+"/change", fmt.Sprint(i)); err != nil {
		return err
	}
	var c types.Checkpoint
	err := o.checkpoint.time(func() (err error) {
		c, err = e.checkpointProcesses(ctx, id, false)
		return err
	})
	if err != nil {
		return err
	}
	o.stop.add(c.Timings.FreezeMs)
	o.bytes.add(float64(c.Sizes.ProcessBytes) / (1 << 20))
	if err := e.write(ctx, id, workDir+"/change", "-"); err != nil {
		return err
	}
	return o.restore.time(func() error {
		include := types.Include
		s, err := client.Get[types.RestoredSandbox](e.cairn.RestoreSandbox(ctx, id, nil, types.Restore{Checkpoint: c.Id, Processes: &include}))
		o.restoreStop.add(s.Timings.FreezeMs)
		return err
	})
}

func (e *env) checkpointProcesses(ctx context.Context, id string, stop bool) (types.Checkpoint, error) {
	include := types.Include
	return client.Get[types.Checkpoint](e.cairn.CreateCheckpoint(ctx, id, nil, types.CreateCheckpoint{Processes: &include, Stop: &stop}))
}

// forksWithProcesses measures forks of the small program, alone and 16 at once.
func (e *env) forksWithProcesses(ctx context.Context, snapshot string) (err error) {
	e.say("processes: forks")
	id, err := e.python(ctx, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.remove(context.WithoutCancel(ctx), id)) }()
	c, err := e.checkpointProcesses(ctx, id, false)
	if err != nil {
		return err
	}
	k, err := e.base.Create(ctx, snapshot, "python3", "-c", fmt.Sprintf(python, 0))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.Delete(context.WithoutCancel(ctx))) }()
	if err := k.Run(ctx, "sh", "-c", "until [ -e /ready ]; do :; done"); err != nil {
		return err
	}
	images, err := k.Checkpoint(ctx)
	if err != nil {
		return err
	}
	var one, oneIn, all, each, theirs series
	for range e.pick(6, 20) {
		if err := e.forkTimed(ctx, c.Id, 1, &one, &oneIn); err != nil {
			return err
		}
		var child *baseline.Container
		err := theirs.time(func() error {
			child, err = e.base.CreateFrom(ctx, snapshot, images, "python3")
			return err
		})
		if err != nil {
			return fmt.Errorf("containerd: %w", err)
		}
		if err := child.Delete(ctx); err != nil {
			return err
		}
	}
	for range e.pick(2, 6) {
		if err := e.forkTimed(ctx, c.Id, warmNow, &all, &each); err != nil {
			return err
		}
	}
	e.report.add("fork, processes, warm", pythonCase(0), one, theirs)
	e.report.add("16 forks with processes at once", pythonCase(0), all, nil)
	e.report.add("... each, as the daemon says", pythonCase(0), each, nil)
	e.report.addParts("fork, processes, warm", []part{{What: "in the daemon", P50: oneIn.p50()}, {What: "the rest: HTTP, validation, JSON", P50: one.p50() - oneIn.p50()}})
	return nil
}

// forkTimed makes n children of which every one has its processes, and deletes them.
func (e *env) forkTimed(ctx context.Context, checkpoint string, n int, total, each *series) error {
	if err := e.settled(ctx); err != nil {
		return err
	}
	include := types.Include
	var r types.ForkResults
	err := total.time(func() (err error) {
		r, err = client.Get[types.ForkResults](e.cairn.ForkCheckpoint(ctx, checkpoint, nil, types.Fork{Count: &n, Processes: &include}))
		return err
	})
	var ids []string
	for _, f := range r.Items {
		if f.Error != nil {
			err = errors.Join(err, errors.New(f.Error.Detail))
			continue
		}
		each.add(f.Timings.TotalMs)
		ids = append(ids, f.Sandbox.Id)
	}
	for _, id := range ids {
		err = errors.Join(err, e.exec(ctx, id, "sh", "-c", "grep -qs python /proc/[0-9]*/comm"))
	}
	return errors.Join(err, e.clear(ctx, ids))
}

// hibernation measures stopping a sandbox with its processes, and bringing it back.
func (e *env) hibernation(ctx context.Context) (err error) {
	e.say("processes: hibernate, %s", pythonCase(largest))
	id, err := e.python(ctx, largest)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.remove(context.WithoutCancel(ctx), id)) }()
	var stop, resume, freed series
	for range e.pick(3, 8) {
		if err := e.settled(ctx); err != nil {
			return err
		}
		before, err := e.pss()
		if err != nil {
			return err
		}
		if err := stop.time(func() error { _, err := e.checkpointProcesses(ctx, id, true); return err }); err != nil {
			return err
		}
		if err := e.stopped(ctx); err != nil {
			return err
		}
		after, err := e.pss()
		if err != nil {
			return err
		}
		freed.add(float64(before-after) / (1 << 20))
		if err := resume.time(func() error {
			return client.Done(e.cairn.ResumeSandbox(ctx, id, nil))
		}); err != nil {
			return err
		}
		if err := e.exec(ctx, id, "sh", "-c", "grep -qs python /proc/[0-9]*/comm"); err != nil {
			return err
		}
	}
	e.report.add("hibernate", pythonCase(largest), stop, nil)
	e.report.add("resume", pythonCase(largest), resume, nil)
	e.report.addUnit("... memory freed (PSS)", pythonCase(largest), "MB", freed, nil)
	return nil
}

// stopped waits until the containers are the blank ones alone.
func (e *env) stopped(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		slots, err := os.ReadDir(e.cairn.Slots())
		if err != nil {
			return err
		}
		if len(slots) == e.warm {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("there are %d containers in the place of %d: %w", len(slots), e.warm, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// slope fits a line through points and returns how much y grows with x.
func slope(x, y []float64) float64 {
	var sx, sy, sxx, sxy float64
	for i := range x {
		sx, sy, sxx, sxy = sx+x[i], sy+y[i], sxx+x[i]*x[i], sxy+x[i]*y[i]
	}
	n := float64(len(x))
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}

// addSlopes records what each further megabyte of memory costs.
func (r *report) addSlopes(mb []float64, all []processOps) {
	of := func(pick func(processOps) series) series {
		var y []float64
		for _, o := range all {
			y = append(y, pick(o).p50())
		}
		return series{slope(mb, y)}
	}
	r.Notes = append(r.Notes, "containerd's process checkpoints are of a plain container, without a user namespace; files are not part of them")
	const kase = "per further MB"
	theirCheckpoint := of(func(o processOps) series { return o.theirs.checkpoint })
	theirRestore := of(func(o processOps) series { return o.theirs.restore })
	r.add("checkpoint, processes", kase, of(func(o processOps) series { return o.checkpoint }), theirCheckpoint)
	r.add("... stop", kase, of(func(o processOps) series { return o.stop }), nil)
	r.add("restore, processes", kase, of(func(o processOps) series { return o.restore }), theirRestore)
}

// explainProcesses records what the operations consist of, as the daemon says.
func (r *report) explainProcesses(kase string, o processOps) {
	r.detail("checkpoint with processes, "+kase, o.dumped.parts())
	r.detail("restore with processes, "+kase, o.restored.parts())
}

func (r *report) addParts(name string, p []part) {
	if r.parts == nil {
		r.parts = map[string][]part{}
	}
	r.parts[name] = p
}

// addProcessFigures compares with what is to be reached.
func (r *report) addProcessFigures(most func(string, float64, string, *row, func(row) float64), least func(string, float64, *row)) {
	p50 := func(w row) float64 { return w.P50 }
	small := pythonCase(0)
	what := small + " of Python"
	most("checkpoint with "+what+": stop p50", 25, "ms", r.find("... stop", small), p50)
	least("checkpoint with "+what+": faster than containerd", 8, r.find("checkpoint, processes", small))
	most("restore with "+what+", in place: API p50", 50, "ms", r.find("restore, processes", small), p50)
	least("restore with "+what+": faster than containerd", 5, r.find("restore, processes", small))
	most("fork with "+what+", warm: API p50", 60, "ms", r.find("fork, processes, warm", small), p50)
	most("16 forks with "+what+" at once", 600, "ms", r.find("16 forks with processes at once", small), p50)
	most("stop, per further MB of memory", 0.6, "ms", r.find("... stop", "per further MB"), p50)
	most("restore, per further MB of memory", 0.6, "ms", r.find("restore, processes", "per further MB"), p50)
}
