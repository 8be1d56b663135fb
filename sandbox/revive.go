package sandbox

import (
	"context"
	"encoding/json"
	"io"
	"time"
)

// opRevive is the journal's name for a restore with processes. Its entry is written
// before the processes of the sandbox end. A daemon that finds one finds a container of
// which nothing is certain: it is destroyed, and the sandbox is left stopped, with the
// files that it had.
const opRevive = "restore_processes"

const halfRestored = "the daemon ended while processes were being restored"

// revive restores files and processes of a sandbox that has a container.
func (s *Service) revive(ctx context.Context, sb Sandbox, cp Checkpoint) (RestoreResult, error) {
	c, err := s.container(sb)
	if err != nil {
		return RestoreResult{}, err
	}
	if err := s.o.Dumps.Check(ctx, cp.Images, cp.ImagesDigest); err != nil {
		return RestoreResult{}, err
	}
	if c.Program() != cp.Program {
		return s.restoreElsewhere(ctx, sb, cp, true, "its container has another cairn-init than the processes to be restored")
	}
	img, err := s.imageOf(ctx, sb.ImageID)
	if err != nil {
		return RestoreResult{}, err
	}
	a, err := s.freshUpper(ctx, sb, cp.Stack, len(img.Layers))
	if err != nil {
		return RestoreResult{}, err
	}
	defer a.unpin()
	var u undo
	defer u.run(ctx)
	u.add(func(ctx context.Context) { s.remove(ctx, a.upper); s.remove(ctx, a.identity) })
	target := Target{PID: c.PID(), IDBase: c.IDBase(), Hostname: sb.Hostname}
	p, err := s.o.Layers.Prepare(ctx, target, Stack{Upper: a.upper, Layers: a.base})
	if err != nil {
		return RestoreResult{}, err
	}
	u.add(func(context.Context) { p.Close() })
	op, err := s.journal(ctx, opRevive, sb.ID, []string{a.upper, a.identity}, pending{Upper: a.upper})
	if err != nil {
		return RestoreResult{}, err
	}
	u.add(func(ctx context.Context) { s.unjournal(ctx, op) })
	if err := s.reach("revive.journalled"); err != nil {
		return RestoreResult{}, err
	}
	stopped := time.Now()
	var next Sandbox
	var kept *Checkpoint
	var old io.Closer
	attach := func(ctx context.Context) (err error) {
		if err := s.reach("revive.killed"); err != nil {
			return err
		}
		empty, err := s.o.Layers.Empty(sb.Upper)
		if err != nil {
			return err
		}
		next, kept = s.back(sb, cp, a, !empty)
		next.Revived = true
		if old, err = p.Attach(ctx); err != nil {
			return err
		}
		if err := c.SetGeneration(next.Generation); err != nil {
			return err
		}
		return s.reach("revive.attached")
	}
	err = s.o.Dumps.Restore(ctx, c, dumpedProcesses(cp, attach))
	if err == nil {
		err = s.reach("revive.restored")
	}
	if err != nil {
		// The container goes before the layers that it may stand on.
		ctx, cancel := outlive(ctx)
		defer cancel()
		if old != nil {
			s.closeLater(old)
		}
		if stop := s.markStopped(ctx, sb, "its processes could not be restored; its files are as they were"); stop != nil {
			s.log.Error("cannot record that a sandbox stopped", "sandbox", sb.ID, "err", stop)
		}
		return RestoreResult{}, err
	}
	freeze := milliseconds(time.Since(stopped))
	u.release()
	s.closeLater(old, p)
	rows := revived(cp, sb.ID)
	s.settleEnds(sb.ID, rows)
	done := commit{
		Sandbox: next, Checkpoint: kept, Processes: rows,
		Event: "sandbox.restored", Data: map[string]any{"checkpoint": cp.ID, "processes": true},
	}
	// Should it not be possible to record this now, it is recorded before the next operation.
	if op.Data, err = json.Marshal(pending{Upper: a.upper, Commit: done}); err != nil {
		return RestoreResult{}, err
	}
	if err := s.finish(ctx, op, done); err != nil {
		return RestoreResult{}, err
	}
	s.passed("revive.committed")
	s.attendRevived(sb.ID, c, rows)
	res := RestoreResult{Sandbox: next, Timings: Timings{FreezeMS: freeze}, Processes: true}
	if kept != nil {
		res.Undo = kept.ID
		s.durable.add(*kept)
	}
	s.requestSweep()
	return res, nil
}
