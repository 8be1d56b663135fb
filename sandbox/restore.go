package sandbox

import (
	"context"
	"errors"
	"slices"
	"time"
)

const opRestore = "restore"

// Restore puts a sandbox back to a checkpoint, in place: its agent processes are
// ended, its files become the checkpoint's, and so do its processes, if the checkpoint
// has them and they are wanted; otherwise its command is started again. The files that
// were there are kept as a checkpoint first, unless nothing had changed.
// Errors: CodeInvalid, CodeNotFound, CodeConflict, CodeBusy, CodeImageMismatch,
// CodeCorrupt, CodeLost, CodeUnsupported; the sandbox then is as it was. When processes
// cannot be brought back it is left stopped, with the files that it had. CodeHookFailed:
// it is restored all the same.
func (s *Service) Restore(ctx context.Context, idOrName string, r RestoreRequest) (RestoreResult, error) {
	begin := time.Now()
	if r.Checkpoint == "" {
		return RestoreResult{}, Invalid("checkpoint", "the id of a checkpoint")
	}
	if err := checkProcesses(r.Processes); err != nil {
		return RestoreResult{}, err
	}
	cp, release, err := s.holdVerified(ctx, r.Checkpoint, r.Verify)
	if err != nil {
		return RestoreResult{}, err
	}
	defer release()
	sb, unlock, err := s.lockSandbox(ctx, idOrName, "restore")
	if err != nil {
		return RestoreResult{}, err
	}
	defer unlock()
	if cp.ImageID != sb.ImageID {
		return RestoreResult{}, &Error{
			Code: CodeImageMismatch, Field: "checkpoint",
			Message: "checkpoint " + cp.ID + " is of image " + cp.ImageName + ", the sandbox is of " + sb.ImageName + "; fork the checkpoint instead",
		}
	}
	processes, err := wantsProcesses(cp, r.Processes)
	if err == nil && processes {
		err = s.o.Dumps.Usable(ctx)
	}
	if err != nil {
		return RestoreResult{}, err
	}
	if processes && len(r.Paths) == 0 && (sb.State == StateRunning || sb.State == StatePaused) {
		var done func()
		if cp, done, err = s.restorable(ctx, cp); err != nil {
			return RestoreResult{}, err
		}
		defer done()
	}
	var res RestoreResult
	switch {
	case len(r.Paths) > 0 && sb.State != StateFailed:
		res, err = s.restorePaths(ctx, sb, cp, r.Paths)
	case (sb.State == StateRunning || sb.State == StatePaused) && processes:
		res, err = s.revive(ctx, sb, cp)
	case sb.State == StateRunning, sb.State == StatePaused:
		res, err = s.restoreLive(ctx, sb, cp)
	case (sb.State == StateStopped || sb.State == StateFailed) && len(r.Paths) == 0:
		res, err = s.restoreStopped(ctx, sb, cp, processes)
	default:
		err = Errorf(CodeConflict, "sandbox %s is %s", sb.Name, sb.State)
	}
	if err == nil && res.Sandbox.State == StateRunning {
		if err = s.runDue(ctx, &res.Sandbox); err != nil {
			err = afterRestore(err, res)
		}
	}
	res.Timings.TotalMS = milliseconds(time.Since(begin))
	return res, err
}

// afterRestore says where a sandbox stands whose hooks failed.
func afterRestore(err error, res RestoreResult) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	told := *e
	told.Message += "; the sandbox stands at checkpoint " + res.Sandbox.Head
	if res.Undo != "" {
		told.Message += ", and what it had before is in " + res.Undo
	}
	return &told
}

// pinned gives a checkpoint, and keeps its layers until release is called.
func (s *Service) pinned(ctx context.Context, id string) (cp Checkpoint, release func(), err error) {
	for {
		before, err := s.getCheckpoint(ctx, id)
		if err != nil {
			return Checkpoint{}, nil, err
		}
		release = s.Pin(before.Layers()...)
		// Between the look and the pin it may have been deleted, or given other layers.
		if cp, err = s.getCheckpoint(ctx, id); err != nil {
			release()
			return Checkpoint{}, nil, err
		}
		if slices.Equal(cp.Layers(), before.Layers()) {
			return cp, release, nil
		}
		release()
	}
}

// hold gives a checkpoint that may be restored, forked or looked into, and keeps
// its layers until release is called.
func (s *Service) hold(ctx context.Context, id string) (cp Checkpoint, release func(), err error) {
	if cp, release, err = s.pinned(ctx, id); err != nil {
		return Checkpoint{}, nil, err
	}
	switch cp.Durability {
	case DurabilityLost:
		err = Errorf(CodeLost, "checkpoint %s was not durable yet when the host went down", id)
	case DurabilityDamaged:
		err = Errorf(CodeCorrupt, "checkpoint %s is damaged on disk; verify says what is wrong", id)
	case DurabilityCaptured, DurabilityDurable:
		return cp, release, nil
	}
	release()
	return Checkpoint{}, nil, err
}

// holdVerified is hold after a look at every byte, if that is asked for.
func (s *Service) holdVerified(ctx context.Context, id string, verify bool) (Checkpoint, func(), error) {
	if verify {
		if _, err := s.Verify(ctx, id); err != nil {
			return Checkpoint{}, nil, err
		}
	}
	return s.hold(ctx, id)
}

// back makes the records for a sandbox put back to cp: the sandbox, and the
// checkpoint of what was there (nil when nothing had changed).
func (s *Service) back(sb Sandbox, cp Checkpoint, a attachment, changed bool) (Sandbox, *Checkpoint) {
	var kept *Checkpoint
	if changed {
		k := s.newCheckpoint(sb, CheckpointRequest{Kind: KindBeforeRestore, Processes: processesExclude})
		throwaway := sb
		sealed(&throwaway, &k, a.upper)
		kept = &k
	}
	a.apply(&sb)
	sb.Head, sb.HeadMoved, sb.Generation, sb.UpdatedAt = cp.ID, false, sb.Generation+1, s.o.Now()
	sb.RestoredAt, sb.Asleep, sb.Revived = sb.UpdatedAt, "", false
	if sb.State == StatePaused || sb.State == StateRunning {
		sb.State, sb.Reason = StateRunning, ""
	}
	sb.owe(HookAfterRestore, cp.ID)
	return sb, kept
}

func (s *Service) restoreLive(ctx context.Context, sb Sandbox, cp Checkpoint) (RestoreResult, error) {
	c, err := s.container(sb)
	if err != nil {
		return RestoreResult{}, err
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
	if err := s.reach("restore.prepared"); err != nil {
		return RestoreResult{}, err
	}
	stopped := time.Now()
	if sb.State == StatePaused {
		s.thaw(ctx, c)
		u.add(func(ctx context.Context) {
			if err := c.Freeze(ctx); err != nil {
				s.log.Error("cannot pause a sandbox again", "sandbox", sb.ID, "err", err)
			}
		})
	}
	// From here on the agent's processes are gone whatever happens; the files are
	// not, and an error says so.
	if err := s.endAgents(ctx, c); err != nil {
		s.log.Warn("restoring into a new container", "sandbox", sb.ID, "err", err)
		u.run(ctx)
		return s.restoreElsewhere(ctx, sb, cp, false, "its processes had made its container unusable")
	}
	if err := s.reach("restore.killed"); err != nil {
		return RestoreResult{}, err
	}
	thaw, err := s.freeze(ctx, Sandbox{State: StateRunning}, c)
	if err != nil {
		return RestoreResult{}, err
	}
	defer thaw()
	empty, err := s.o.Layers.Empty(sb.Upper)
	if err != nil {
		return RestoreResult{}, err
	}
	next, kept := s.back(sb, cp, a, !empty)
	done := commit{Sandbox: next, Checkpoint: kept, Event: "sandbox.restored", Data: map[string]any{"checkpoint": cp.ID}}
	op, err := s.journal(ctx, opRestore, sb.ID, []string{a.upper, a.identity}, pending{Upper: a.upper, Commit: done})
	if err != nil {
		return RestoreResult{}, err
	}
	u.add(func(ctx context.Context) { s.unjournal(ctx, op) })
	if err := s.reach("restore.journalled"); err != nil {
		return RestoreResult{}, err
	}
	old, err := p.Attach(ctx)
	if err != nil {
		return RestoreResult{}, err
	}
	u.release()
	s.passed("restore.attached")
	thaw()
	freeze := milliseconds(time.Since(stopped))
	s.closeLater(old, p)
	if err := s.finish(ctx, op, done); err != nil {
		return RestoreResult{}, err
	}
	s.passed("restore.committed")
	if err := c.SetGeneration(next.Generation); err != nil {
		s.log.Error("cannot write the generation number", "sandbox", sb.ID, "err", err)
	}
	return s.restored(ctx, next, kept, c, freeze), nil
}

// endAgents ends every process but PID 1 and the stem, and looks whether the stem
// still answers: root inside may have broken its socket.
func (s *Service) endAgents(ctx context.Context, c Container) error {
	if err := c.KillAll(ctx); err != nil {
		return err
	}
	const patience = time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return c.Guest().Ready(ctx)
}

// restoreElsewhere restores a sandbox whose container cannot be used for it: it is
// stopped for that reason, put back, and given another one. Cut short in between, it is
// left stopped, with its files as they were or as they are to be.
func (s *Service) restoreElsewhere(ctx context.Context, sb Sandbox, cp Checkpoint, processes bool, reason string) (RestoreResult, error) {
	if err := s.markStopped(ctx, sb, reason); err != nil {
		return RestoreResult{}, err
	}
	sb, err := s.Sandbox(ctx, sb.ID)
	if err != nil {
		return RestoreResult{}, err
	}
	res, err := s.restoreStopped(ctx, sb, cp, processes)
	if err != nil {
		return RestoreResult{}, err
	}
	res.Sandbox, err = s.restart(ctx, res.Sandbox)
	return res, err
}

// restored starts the command again and makes the answer.
func (s *Service) restored(ctx context.Context, sb Sandbox, kept *Checkpoint, c Container, freeze float64) RestoreResult {
	res := RestoreResult{Sandbox: sb, Timings: Timings{FreezeMS: freeze}}
	if kept != nil {
		res.Undo = kept.ID
		s.durable.add(*kept)
	}
	s.requestSweep()
	if c == nil {
		return res
	}
	if err := s.startMain(ctx, sb, c); err != nil {
		s.log.Warn("the main command did not start", "sandbox", sb.ID, "err", err)
		err := s.update(ctx, func(tx Tx) error {
			return s.emit(tx, "process.failed", sb.ID, sb.ID, map[string]any{"command": sb.Config.Command, "code": string(CodeOf(err))})
		})
		if err != nil {
			s.log.Error("cannot record an event", "err", err)
		}
	}
	return res
}

// restoreStopped puts back a sandbox that has no container: only records change.
// One that had failed is merely stopped then; of its damaged files nothing is kept.
// Processes come back when it is resumed.
func (s *Service) restoreStopped(ctx context.Context, sb Sandbox, cp Checkpoint, processes bool) (RestoreResult, error) {
	img, err := s.imageOf(ctx, sb.ImageID)
	if err != nil {
		return RestoreResult{}, err
	}
	changed := false
	if sb.State != StateFailed {
		empty, err := s.o.Layers.Empty(sb.Upper)
		if err != nil {
			return RestoreResult{}, err
		}
		changed = !empty
	}
	a, err := s.freshUpper(ctx, sb, cp.Stack, len(img.Layers))
	if err != nil {
		return RestoreResult{}, err
	}
	defer a.unpin()
	next, kept := s.back(sb, cp, a, changed)
	if next.State == StateFailed {
		next.State, next.Reason = StateStopped, ""
	}
	done := commit{Sandbox: next, Checkpoint: kept, Event: "sandbox.restored", Data: map[string]any{"checkpoint": cp.ID}}
	if processes {
		done.Sandbox.Asleep, done.Processes = cp.ID, asleep(revived(cp, sb.ID))
	}
	err = s.update(ctx, func(tx Tx) error {
		// The checkpoint cannot be deleted between this look and the record that keeps it.
		if processes {
			if _, err := tx.Checkpoint(cp.ID); err != nil {
				return err
			}
		}
		if err := s.loseAsleep(tx, sb); err != nil {
			return err
		}
		return s.write(tx, "", done)
	})
	if err != nil {
		return RestoreResult{}, err
	}
	res := s.restored(ctx, done.Sandbox, kept, nil, 0)
	res.Processes = processes
	return res, nil
}

// restorePaths puts back only some paths. Processes go on. What was there is
// checkpointed first, so a failure halfway can be undone by a restore.
func (s *Service) restorePaths(ctx context.Context, sb Sandbox, cp Checkpoint, paths []string) (RestoreResult, error) {
	if err := checkRestorePaths(paths); err != nil {
		return RestoreResult{}, err
	}
	kept, err := s.checkpoint(ctx, sb, CheckpointRequest{Kind: KindBeforeRestore, Processes: processesExclude, keepRoot: true})
	if err != nil {
		return RestoreResult{}, err
	}
	if err := s.reach("restore_paths.kept"); err != nil {
		return RestoreResult{}, err
	}
	if sb, err = s.Sandbox(ctx, sb.ID); err != nil {
		return RestoreResult{}, err
	}
	from, release, err := s.CheckpointFiles(ctx, cp.ID)
	if err != nil {
		return RestoreResult{}, err
	}
	defer release()
	to, done, err := s.tree(ctx, sb, true)
	if err != nil {
		return RestoreResult{}, err
	}
	defer done()
	for _, p := range slices.Compact(slices.Sorted(slices.Values(paths))) {
		if err := s.copyPath(ctx, from, to, p); err != nil {
			return RestoreResult{}, err
		}
	}
	err = s.putSandbox(ctx, &sb, "sandbox.paths_restored", map[string]any{"checkpoint": cp.ID, "paths": paths})
	return RestoreResult{Sandbox: sb, Undo: kept.ID, Timings: Timings{FreezeMS: kept.Timings.FreezeMS}}, err
}
