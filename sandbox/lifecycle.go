package sandbox

import (
	"context"
	"maps"
)

// Sandbox gives one by id or name; CodeNotFound.
func (s *Service) Sandbox(ctx context.Context, idOrName string) (sb Sandbox, err error) {
	err = s.o.Store.View(ctx, func(tx Tx) (err error) { sb, err = tx.Sandbox(idOrName); return err })
	return sb, err
}

// Sandboxes lists them, newest first.
func (s *Service) Sandboxes(ctx context.Context, f SandboxFilter, p Page) (l List[Sandbox], err error) {
	err = s.o.Store.View(ctx, func(tx Tx) (err error) { l, err = tx.Sandboxes(f, p); return err })
	return l, err
}

// UpdateSandbox changes the name, the labels or the hooks.
func (s *Service) UpdateSandbox(ctx context.Context, idOrName string, u SandboxUpdate) (Sandbox, error) {
	if u.Name != nil {
		if err := checkName("name", *u.Name); err != nil {
			return Sandbox{}, err
		}
	}
	if err := checkLabels(u.Labels); err != nil {
		return Sandbox{}, err
	}
	hooks, err := s.checkHooks(u.Hooks)
	if err != nil {
		return Sandbox{}, err
	}
	sb, unlock, err := s.lockSandbox(ctx, idOrName, "update")
	if err != nil {
		return Sandbox{}, err
	}
	defer unlock()
	if u.Name != nil {
		sb.Name = *u.Name
	}
	if u.Labels != nil {
		sb.Labels = maps.Clone(u.Labels)
	}
	if u.Hooks != nil {
		sb.Config.Hooks = hooks
	}
	return sb, s.putSandbox(ctx, &sb, "sandbox.updated", nil)
}

// putSandbox stores the sandbox with an event.
func (s *Service) putSandbox(ctx context.Context, sb *Sandbox, event string, data map[string]any) error {
	sb.UpdatedAt = s.o.Now()
	return s.update(ctx, func(tx Tx) error {
		if err := tx.PutSandbox(*sb); err != nil {
			return err
		}
		return s.emit(tx, event, sb.ID, sb.ID, data)
	})
}

// Pause freezes every process of a sandbox. Pausing a paused one changes nothing.
func (s *Service) Pause(ctx context.Context, idOrName string) (Sandbox, error) {
	sb, unlock, err := s.lockSandbox(ctx, idOrName, "pause")
	if err != nil {
		return Sandbox{}, err
	}
	defer unlock()
	if sb.State == StatePaused {
		return sb, nil
	}
	return s.pause(ctx, sb, "")
}

func (s *Service) pause(ctx context.Context, sb Sandbox, reason string) (Sandbox, error) {
	c, err := s.container(sb)
	if err != nil {
		return Sandbox{}, err
	}
	if err := c.Freeze(ctx); err != nil {
		return Sandbox{}, err
	}
	sb.State, sb.Reason = StatePaused, reason
	if err := s.putSandbox(ctx, &sb, "sandbox.paused", map[string]any{"reason": reason}); err != nil {
		s.thaw(ctx, c)
		return Sandbox{}, err
	}
	return sb, nil
}

// Resume lets a paused sandbox go on, or gives a stopped one a new container
// with the files as they were, and with its processes if a checkpoint stopped it.
// Resuming a running one changes nothing. CodeHookFailed: it is resumed all the same.
func (s *Service) Resume(ctx context.Context, idOrName string) (Sandbox, error) {
	sb, unlock, err := s.lockSandbox(ctx, idOrName, "resume")
	if err != nil {
		return Sandbox{}, err
	}
	defer unlock()
	switch sb.State {
	case StateRunning:
		return sb, nil
	case StatePaused:
		c, err := s.container(sb)
		if err != nil {
			return Sandbox{}, err
		}
		sb.State, sb.Reason = StateRunning, ""
		if err := s.putSandbox(ctx, &sb, "sandbox.resumed", nil); err != nil {
			return Sandbox{}, err
		}
		return sb, c.Thaw(ctx)
	case StateStopped:
		if sb, err = s.restart(ctx, sb); err != nil {
			return Sandbox{}, err
		}
		err = s.runDue(ctx, &sb)
		return sb, err
	case StateCreating, StateFailed:
	}
	return Sandbox{}, Errorf(CodeConflict, "sandbox %s is %s and cannot be resumed", sb.Name, sb.State)
}

// restart gives a stopped sandbox a new container on its own upper. When its
// processes cannot be brought back it stays as it was.
func (s *Service) restart(ctx context.Context, sb Sandbox) (Sandbox, error) {
	a := attachment{upper: sb.Upper, base: sb.Base, identity: sb.Identity, below: sb.Below}
	captured := sb.Captured
	var processes *Checkpoint
	var rows []Process
	if sb.Asleep != "" {
		cp, release, err := s.hold(ctx, sb.Asleep)
		if err != nil {
			return Sandbox{}, err
		}
		defer release()
		cp, done, err := s.restorable(ctx, cp)
		if err != nil {
			return Sandbox{}, err
		}
		defer done()
		processes, rows = &cp, revived(cp, sb.ID)
		sb.Generation++ // time has passed that its processes know nothing of
		if sb.HooksDue.Event == "" {
			sb.owe(HookAfterRestore, cp.ID)
		}
	}
	c, err := s.start(ctx, &sb, a, processes, "resume")
	if err != nil {
		return Sandbox{}, err
	}
	sb.Captured = captured
	err = s.update(ctx, func(tx Tx) error {
		return s.write(tx, "", commit{Sandbox: sb, Processes: rows, Event: "sandbox.resumed"})
	})
	if err != nil {
		s.destroy(ctx, c.Name())
		return Sandbox{}, err
	}
	s.adopt(sb, c)
	s.attendRevived(sb.ID, c, rows)
	if processes != nil {
		return sb, nil
	}
	if err := s.startMain(ctx, sb, c); err != nil {
		s.log.Warn("the main command did not start", "sandbox", sb.ID, "err", err)
	}
	return sb, nil
}

func (s *Service) destroy(ctx context.Context, name string) {
	ctx, cancel := outlive(ctx)
	defer cancel()
	if err := s.o.Containers.Destroy(ctx, name); err != nil {
		s.log.Error("cannot destroy a container; the next start of the daemon does", "container", name, "err", err)
	}
}

func (s *Service) thaw(ctx context.Context, c Container) {
	ctx, cancel := outlive(ctx)
	defer cancel()
	if err := c.Thaw(ctx); err != nil {
		s.log.Error("cannot thaw a sandbox", "container", c.Name(), "err", err)
	}
}

const opDelete = "delete"

// Delete ends a sandbox and frees what only it needs. Its checkpoints stay.
func (s *Service) Delete(ctx context.Context, idOrName string) error {
	sb, unlock, err := s.lockSandbox(ctx, idOrName, "delete")
	if err != nil {
		return err
	}
	defer unlock()
	return s.deleteLocked(ctx, sb)
}

// deleteLocked is Delete under the lock.
func (s *Service) deleteLocked(ctx context.Context, sb Sandbox) error {
	op := Operation{ID: s.o.NewID("op"), Kind: opDelete, SandboxID: sb.ID, StartedAt: s.o.Now()}
	if err := s.update(ctx, func(tx Tx) error { return tx.PutOperation(op) }); err != nil {
		return err
	}
	ctx, cancel := outlive(ctx)
	defer cancel()
	return s.finishDelete(ctx, sb, op)
}

// finishDelete does what a journalled deletion began, however far it came.
func (s *Service) finishDelete(ctx context.Context, sb Sandbox, op Operation) error {
	if err := s.reach("delete.journalled"); err != nil {
		return err
	}
	s.drop(sb.ID)
	if sb.Container != "" {
		if err := s.o.Containers.Destroy(ctx, sb.Container); err != nil {
			return err
		}
	}
	if err := s.reach("delete.destroyed"); err != nil {
		return err
	}
	if err := s.o.Layers.SetLimit(sb.Project, 0); err != nil {
		s.log.Warn("cannot lift the disk limit of a deleted sandbox", "sandbox", sb.ID, "err", err)
	}
	err := s.update(ctx, func(tx Tx) error {
		if err := tx.DeleteSandbox(sb.ID); err != nil {
			return err
		}
		if err := tx.DeleteOperation(op.ID); err != nil {
			return err
		}
		return s.emit(tx, "sandbox.deleted", sb.ID, sb.ID, map[string]any{"name": sb.Name})
	})
	s.requestSweep()
	return err
}

// watch waits for the end of a container that nobody asked to end.
func (s *Service) watch(ctx context.Context, id string, c Container) {
	select {
	case <-ctx.Done():
		return
	case <-c.Done():
	}
	unlock, err := s.locks.lock(ctx, id, "stop", true)
	if err != nil {
		return
	}
	defer unlock()
	sb, err := s.Sandbox(ctx, id)
	if err != nil || sb.Container != c.Name() {
		return
	}
	if err := s.markStopped(ctx, sb, "its first process ended unexpectedly"); err != nil {
		s.log.Error("cannot record that a sandbox stopped", "sandbox", id, "err", err)
	}
}

// markStopped removes what is left of a sandbox's container and records it.
func (s *Service) markStopped(ctx context.Context, sb Sandbox, reason string) error {
	s.drop(sb.ID)
	if sb.Container != "" {
		s.destroy(ctx, sb.Container)
	}
	sb.Container, sb.State, sb.Reason = "", StateStopped, reason
	if err := s.endProcesses(ctx, sb.ID); err != nil {
		return err
	}
	return s.putSandbox(ctx, &sb, "sandbox.stopped", map[string]any{"reason": reason})
}

// markFailed records that a sandbox cannot run as it is, and ends what is left of it.
func (s *Service) markFailed(ctx context.Context, sb *Sandbox, reason string) error {
	if sb.Container != "" {
		s.destroy(ctx, sb.Container)
	}
	sb.Container, sb.State, sb.Reason = "", StateFailed, reason
	if err := s.endProcesses(ctx, sb.ID); err != nil {
		return err
	}
	return s.putSandbox(ctx, sb, "sandbox.failed", map[string]any{"reason": reason})
}

// Usage says what a sandbox uses now.
func (s *Service) Usage(ctx context.Context, idOrName string) (Usage, error) {
	sb, err := s.Sandbox(ctx, idOrName)
	if err != nil {
		return Usage{}, err
	}
	var u Usage
	if c, err := s.container(sb); err == nil {
		if u, err = c.Usage(); err != nil {
			return Usage{}, err
		}
	}
	u.DiskBytes, err = s.diskUsed(ctx, sb)
	return u, err
}
