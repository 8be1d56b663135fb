package main

import (
	"context"
	"fmt"
)

// benchDepth measures with ever more layers below the sandbox.
func benchDepth(ctx context.Context, e *env) error {
	depths := []int{1, 16, 64}
	if e.o.quick {
		depths = []int{1, 16}
	}
	const noSquash = 400
	if err := e.configure(ctx, warmNow, noSquash); err != nil {
		return err
	}
	for _, d := range depths {
		e.say("%d layers", d)
		var o ops
		s, err := e.create(ctx)
		if err != nil {
			return err
		}
		// The round's own first checkpoint is the last of the layers.
		for i := range d - 1 {
			if err := e.write(ctx, s.Id, fmt.Sprintf("%s/%d/file", workDir, i), "text"); err != nil {
				return err
			}
			if _, err := e.checkpoint(ctx, s.Id); err != nil {
				return err
			}
		}
		if err := e.settled(ctx); err != nil {
			return err
		}
		if err := e.rounds(ctx, &o, s.Id, e.pick(15, 50), 12); err != nil {
			return err
		}
		if err := e.remove(ctx, s.Id); err != nil {
			return err
		}
		e.report.addOps(fmt.Sprintf("depth %d", d), o, ops{})
	}
	return e.configure(ctx, warmNow, 0)
}
