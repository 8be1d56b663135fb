package main

import (
	"context"
	"fmt"
	"path/filepath"
)

// benchAlive measures checkpoints of sandboxes in which a process runs.
func benchAlive(ctx context.Context, e *env) error {
	cases := []struct {
		name    string
		command string
		method  string
		files   int
		bytes   int64
	}{
		{"idle process, 100 files", "exec sleep infinity", "switch", 100, 0},
		{"writer, 100 files", "exec 3>/app/open; exec sleep infinity", "copy", 100, 0},
		{"writer, 10000 files", "exec 3>/app/open; exec sleep infinity", "copy", 10_000, 0},
		{"writer, one file of 100 MB", "exec 3>/app/open; exec sleep infinity", "copy", 1, 100 << 20},
	}
	for _, c := range cases {
		e.say("alive: %s", c.name)
		if err := e.alive(ctx, c.name, c.command, c.method, c.files, c.bytes); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

func (e *env) alive(ctx context.Context, name, script, method string, files int, bytes int64) error {
	s, err := e.create(ctx)
	if err != nil {
		return err
	}
	tar := filepath.Join(e.dir, "files.tar")
	if err := filesTar(tar, files); err != nil {
		return err
	}
	if err := e.unpack(ctx, s.Id, workDir, tar); err != nil {
		return err
	}
	if bytes > 0 {
		if err := e.exec(ctx, s.Id, "dd", "if=/dev/urandom", "of="+workDir+"/big", "bs=1M", fmt.Sprintf("count=%d", bytes>>20)); err != nil {
			return err
		}
	}
	if err := e.start(ctx, s.Id, "sh", "-c", script); err != nil {
		return err
	}
	// So that the command, and not the shell before it, is what runs.
	if err := e.exec(ctx, s.Id, "sh", "-c", "until pidof sleep >/dev/null || grep -qs sleep /proc/[0-9]*/comm; do :; done"); err != nil {
		return err
	}
	var first, firstFreeze, next, nextFreeze series
	for i := range e.pick(5, 15) {
		total, freeze := &next, &nextFreeze
		if i == 0 {
			total, freeze = &first, &firstFreeze
		}
		if err := e.write(ctx, s.Id, workDir+"/change", fmt.Sprint(i)); err != nil {
			return err
		}
		err := total.time(func() error {
			c, err := e.checkpoint(ctx, s.Id)
			if err == nil && string(c.Method) != method {
				err = fmt.Errorf("captured by %q instead of %q (%s)", c.Method, method, c.Reason)
			}
			freeze.add(c.Timings.FreezeMs)
			return err
		})
		if err != nil {
			return err
		}
		if err := e.settled(ctx); err != nil {
			return err
		}
	}
	e.report.add("first checkpoint, process alive", name, first, nil)
	e.report.add("... freeze", name, firstFreeze, nil)
	e.report.add("next checkpoints, process alive", name, next, nil)
	e.report.add("... freeze", name, nextFreeze, nil)
	return e.remove(ctx, s.Id)
}
