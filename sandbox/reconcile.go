package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
)

// ReconcileOptions say what happened since the last daemon.
type ReconcileOptions struct {
	HostRestarted bool // the host, not only the daemon, went down
}

// Reconcile makes metadata, containers and layers agree again after a daemon
// that ended in any way: it finishes or undoes what the journal names, finds the
// containers of the sandboxes, removes what belongs to none, and starts the
// background work. Call it once, before any other method.
func (s *Service) Reconcile(ctx context.Context, o ReconcileOptions) error {
	if err := s.reconcileJournal(ctx); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if err := s.reconcileSandboxes(ctx); err != nil {
		return fmt.Errorf("sandboxes: %w", err)
	}
	if err := s.reconcileContainers(ctx); err != nil {
		return fmt.Errorf("containers: %w", err)
	}
	if err := s.reconcileCheckpoints(ctx, o.HostRestarted); err != nil {
		return fmt.Errorf("checkpoints: %w", err)
	}
	if _, err := s.Sweep(ctx); err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	for range s.o.DurableWorkers {
		s.goDo(s.durable.run)
	}
	s.goDo(s.sweepLoop)
	if s.o.CompressAfter > 0 {
		s.goDo(s.compressLoop)
	}
	s.goDo(s.diskLoop)
	return nil
}

func (s *Service) reconcileJournal(ctx context.Context) error {
	var ops []Operation
	if err := s.o.Store.View(ctx, func(tx Tx) (err error) { ops, err = tx.Operations(); return err }); err != nil {
		return err
	}
	for _, op := range ops {
		sb, err := s.Sandbox(ctx, op.SandboxID)
		switch {
		case CodeOf(err) == CodeNotFound:
			s.unjournal(ctx, op)
		case err != nil:
			return err
		case op.Kind == opDelete:
			err = s.finishDelete(ctx, sb, op)
		case op.Kind == opRevive:
			if sb.Container != "" {
				err = s.markStopped(ctx, sb, halfRestored)
			}
			if err == nil {
				s.unjournal(ctx, op)
			}
		default:
			err = s.reconcileAttach(ctx, sb, op)
		}
		if err != nil && CodeOf(err) != CodeNotFound {
			return fmt.Errorf("%s of %s: %w", op.Kind, op.SandboxID, err)
		}
		s.log.Info("settled an operation that was cut short", "operation", op.ID, "kind", op.Kind, "sandbox", op.SandboxID)
	}
	return nil
}

// reconcileAttach finishes an operation whose stack the sandbox stands on, and
// forgets one whose stack it does not.
func (s *Service) reconcileAttach(ctx context.Context, sb Sandbox, op Operation) error {
	var p pending
	if err := json.Unmarshal(op.Data, &p); err != nil {
		return err
	}
	c, err := s.o.Containers.Open(ctx, sb.Container)
	if err == nil {
		var upper string
		if upper, err = s.o.Layers.AttachedUpper(c.PID()); err == nil && upper == p.Upper {
			return s.update(ctx, func(tx Tx) error { return s.write(tx, op.ID, p.Commit) })
		}
	}
	if err != nil && CodeOf(err) != CodeNotFound {
		return err
	}
	// The container is gone or stands on the old stack. With it gone nobody has
	// written the new upper since, so the old state is whole.
	s.unjournal(ctx, op)
	return nil
}

func (s *Service) reconcileSandboxes(ctx context.Context) error {
	var all []Sandbox
	err := s.o.Store.View(ctx, func(tx Tx) error {
		return eachSandbox(tx, SandboxFilter{}, func(sb Sandbox) error { all = append(all, sb); return nil })
	})
	if err != nil {
		return err
	}
	present, err := s.presentLayers()
	if err != nil {
		return err
	}
	for _, sb := range all {
		if sb.State == StateCreating { // nobody was ever told of it
			if err := s.update(ctx, func(tx Tx) error { return tx.DeleteSandbox(sb.ID) }); err != nil {
				return err
			}
			continue
		}
		for _, id := range slices.Concat([]string{sb.Upper}, sb.Base) {
			if !present[id] && sb.State != StateFailed {
				if err := s.markFailed(ctx, &sb, "layer "+id+" is missing from the pool; restore it to a checkpoint"); err != nil {
					return err
				}
			}
		}
		if sb.Container == "" {
			continue
		}
		if err := s.reopen(ctx, sb); err != nil {
			return fmt.Errorf("%s: %w", sb.ID, err)
		}
	}
	return nil
}

func (s *Service) presentLayers() (map[string]bool, error) {
	ids, err := s.o.Layers.List()
	if err != nil {
		return nil, err
	}
	present := make(map[string]bool, len(ids))
	for _, id := range ids {
		present[id] = true
	}
	return present, nil
}

// reopen finds a sandbox's container again.
func (s *Service) reopen(ctx context.Context, sb Sandbox) error {
	c, err := s.o.Containers.Open(ctx, sb.Container)
	if CodeOf(err) == CodeNotFound {
		return s.markStopped(ctx, sb, "its container ended while the daemon was away")
	}
	if err != nil {
		return err
	}
	upper, err := s.o.Layers.AttachedUpper(c.PID())
	if err != nil {
		return err
	}
	if upper != sb.Upper {
		return s.markStopped(ctx, sb, "its container did not have the recorded files")
	}
	if sb.State == StateRunning {
		if err := c.Thaw(ctx); err != nil {
			return err
		}
	} else if err := c.Freeze(ctx); err != nil {
		return err
	}
	s.adopt(sb, c)
	if err := c.SetGeneration(sb.Generation); err != nil {
		return err
	}
	if err := s.attendAgain(ctx, sb, c); err != nil {
		return err
	}
	if err := s.mainAgain(ctx, sb, c); err != nil {
		return err
	}
	return s.reportDue(ctx, sb)
}

// mainAgain starts the command of a sandbox whose restore was cut short before it
// did: none was started since.
func (s *Service) mainAgain(ctx context.Context, sb Sandbox, c Container) error {
	if sb.State != StateRunning || len(sb.Config.Command) == 0 || sb.Revived {
		return nil
	}
	list, err := s.Processes(ctx, sb.ID)
	if err != nil {
		return err
	}
	since := sb.CreatedAt
	if !sb.RestoredAt.IsZero() {
		since = sb.RestoredAt
	}
	if slices.ContainsFunc(list, func(p Process) bool { return p.Main && !p.StartedAt.Before(since) }) {
		return nil
	}
	if err := s.startMain(ctx, sb, c); err != nil {
		s.log.Warn("the main command did not start", "sandbox", sb.ID, "err", err)
	}
	return nil
}

// reconcileContainers ends containers that belong to no sandbox.
func (s *Service) reconcileContainers(ctx context.Context) error {
	names, err := s.o.Containers.Names(ctx)
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	s.mu.Lock()
	for _, l := range s.live {
		wanted[l.container.Name()] = true
	}
	s.mu.Unlock()
	for _, name := range names {
		if wanted[name] {
			continue
		}
		if err := s.o.Containers.Destroy(ctx, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// reconcileCheckpoints queues what is not durable yet. After the host went down
// such a checkpoint cannot be trusted, and there is nothing to verify it with.
// One that lacks a layer is damaged, whatever it was.
func (s *Service) reconcileCheckpoints(ctx context.Context, hostRestarted bool) error {
	present, err := s.presentLayers()
	if err != nil {
		return err
	}
	var all []Checkpoint
	if err := s.o.Store.View(ctx, func(tx Tx) (err error) { all, err = tx.AllCheckpoints(); return err }); err != nil {
		return err
	}
	for _, cp := range all {
		missing := slices.ContainsFunc(cp.Layers(), func(id string) bool { return !present[id] })
		was := cp.Durability
		switch {
		case was == DurabilityLost:
		case missing:
			cp.Durability = DurabilityDamaged
		case was == DurabilityCaptured && hostRestarted:
			cp.Durability = DurabilityLost
		case was == DurabilityCaptured:
			s.durable.add(cp)
		}
		if cp.Durability == was {
			continue
		}
		err := s.update(ctx, func(tx Tx) error {
			if err := tx.PutCheckpoint(cp); err != nil {
				return err
			}
			return s.emit(tx, "checkpoint."+string(cp.Durability), cp.SandboxID, cp.ID, nil)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
