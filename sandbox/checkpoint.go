package sandbox

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"time"
)

const opCheckpoint = "checkpoint"

// Checkpoint records the sandbox's files, and its processes if they are to be
// included, as they are at one instant. When only files are recorded, and none has
// changed since the head, it returns the head, with Skipped set.
// Errors: CodeInvalid, CodeNotFound, CodeConflict, CodeBusy, CodeNoSpace,
// CodeUnsupported (the processes cannot be included, and must be), CodeHookFailed; the
// sandbox then goes on as before.
func (s *Service) Checkpoint(ctx context.Context, idOrName string, r CheckpointRequest) (Checkpoint, error) {
	if err := checkCheckpointRequest(&r); err != nil {
		return Checkpoint{}, err
	}
	sb, unlock, err := s.lockSandbox(ctx, idOrName, "checkpoint")
	if err != nil {
		return Checkpoint{}, err
	}
	defer unlock()
	cp, err := s.checkpoint(ctx, sb, r)
	unlock()
	if err != nil {
		return Checkpoint{}, err
	}
	if r.Wait == DurabilityDurable {
		skipped, timings := cp.Skipped, cp.Timings
		if cp, err = s.durable.wait(ctx, cp.ID); err != nil {
			return Checkpoint{}, err
		}
		cp.Skipped, cp.Timings = skipped, timings
	}
	return cp, nil
}

func checkCheckpointRequest(r *CheckpointRequest) error {
	if r.Name != "" {
		if err := checkName("name", r.Name); err != nil {
			return err
		}
	}
	if err := checkNotes(r.Notes); err != nil {
		return err
	}
	if err := checkLabels(r.Labels); err != nil {
		return err
	}
	if err := checkProcesses(r.Processes); err != nil {
		return err
	}
	switch r.Wait {
	case "":
		r.Wait = DurabilityCaptured
	case DurabilityCaptured, DurabilityDurable:
	default:
		return Invalid("wait", `"captured" or "durable"`)
	}
	if r.Kind == "" {
		r.Kind = KindManual
	}
	return nil
}

// checkpoint does it, under the sandbox's lock.
func (s *Service) checkpoint(ctx context.Context, sb Sandbox, r CheckpointRequest) (Checkpoint, error) {
	if sb.State != StateRunning && sb.State != StatePaused && sb.State != StateStopped {
		return Checkpoint{}, Errorf(CodeConflict, "sandbox %s is %s", sb.Name, sb.State)
	}
	cp := s.newCheckpoint(sb, r)
	if sb.State == StateRunning && cp.Kind != KindBeforeRestore {
		if err := s.runHooks(ctx, sb, HookBeforeCheckpoint, cp.ID); err != nil {
			return Checkpoint{}, err
		}
		cp.CreatedAt = s.o.Now()
	}
	done, err := s.checkpointProcesses(ctx, sb, &cp, &r)
	if err == nil && !done {
		cp, err = s.checkpointFiles(ctx, sb, cp, r.keepRoot)
	}
	if err != nil {
		return Checkpoint{}, err
	}
	s.durable.add(cp)
	if r.Stop && sb.State != StateStopped && !cp.Processes {
		if sb, err = s.Sandbox(ctx, sb.ID); err == nil {
			err = s.markStopped(ctx, sb, "")
		}
	}
	return cp, err
}

// checkpointFiles takes the files alone.
func (s *Service) checkpointFiles(ctx context.Context, sb Sandbox, cp Checkpoint, keepRoot bool) (Checkpoint, error) {
	empty, err := s.o.Layers.Empty(sb.Upper)
	switch {
	case err != nil:
		return Checkpoint{}, err
	case empty:
		return s.checkpointUnchanged(ctx, sb, cp)
	case sb.State == StateStopped:
		return s.sealStopped(ctx, sb, cp)
	}
	c, err := s.container(sb)
	if err != nil {
		return Checkpoint{}, err
	}
	return s.checkpointLive(ctx, sb, c, cp, keepRoot)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// took is how long a checkpoint has been in the making.
func (s *Service) took(cp Checkpoint) float64 { return milliseconds(s.o.Now().Sub(cp.CreatedAt)) }

func (s *Service) newCheckpoint(sb Sandbox, r CheckpointRequest) Checkpoint {
	return Checkpoint{
		ID: s.o.NewID("ckpt"), Name: r.Name, Notes: r.Notes, Labels: maps.Clone(r.Labels), Kind: r.Kind,
		SandboxID: sb.ID, Sandbox: sb.Name, Parent: sb.Head, ImageID: sb.ImageID, ImageName: sb.ImageName,
		Config: sb.Config, Generation: sb.Generation, Durability: DurabilityCaptured,
		Versions: s.o.Versions, CreatedAt: s.o.Now(),
	}
}

// checkpointUnchanged answers for a sandbox that wrote nothing since its stack
// was attached. The head stands for it, unless it has none, or the caller has
// something to say that the head already has otherwise.
func (s *Service) checkpointUnchanged(ctx context.Context, sb Sandbox, cp Checkpoint) (Checkpoint, error) {
	says := cp.Name != "" || cp.Notes != "" || len(cp.Labels) > 0
	if sb.Head != "" && !sb.HeadMoved && cp.Kind != KindBeforeRestore {
		head, err := s.getCheckpoint(ctx, sb.Head)
		if err != nil {
			return Checkpoint{}, err
		}
		head.Skipped, head.Timings = true, Timings{TotalMS: s.took(cp)}
		if !says || (head.Name == cp.Name && head.Notes == cp.Notes && maps.Equal(head.Labels, cp.Labels)) {
			return head, nil
		}
		if head.Name == "" && head.Notes == "" && len(head.Labels) == 0 {
			head, err = s.UpdateCheckpoint(ctx, head.ID, CheckpointUpdate{Name: &cp.Name, Notes: &cp.Notes, Labels: cp.Labels})
			head.Skipped = true
			return head, err
		}
	}
	cp.Method, cp.Stack = MethodSwitch, sb.Below
	sb.Head, sb.HeadMoved, sb.UpdatedAt = cp.ID, false, s.o.Now()
	cp.Timings.TotalMS = s.took(cp)
	err := s.update(ctx, func(tx Tx) error { return s.write(tx, "", commit{Sandbox: sb, Checkpoint: &cp}) })
	return cp, err
}

// sealed makes cp the checkpoint whose layer is the sandbox's present upper, and
// the sandbox one that stands on it with a new upper.
func sealed(sb *Sandbox, cp *Checkpoint, upper string) {
	cp.Method, cp.Layer = MethodSwitch, sb.Upper
	cp.Stack = slices.Concat([]string{sb.Upper}, sb.Below)
	sb.Below = cp.Stack
	sb.Upper, sb.Captured, sb.Head, sb.HeadMoved = upper, "", cp.ID, false
}

// sealStopped takes the upper of a sandbox without container: nothing can write it.
func (s *Service) sealStopped(ctx context.Context, sb Sandbox, cp Checkpoint) (Checkpoint, error) {
	next := sb
	upper := s.o.NewID("l")
	defer s.Pin(upper)()
	next.Base = slices.Concat([]string{sb.Upper}, sb.Base)
	sealed(&next, &cp, upper)
	next.UpdatedAt = s.o.Now()
	if err := s.o.Layers.CreateUpper(ctx, upper, sb.Project, sb.Config.Resources.DiskBytes); err != nil {
		return Checkpoint{}, err
	}
	cp.Timings.TotalMS = s.took(cp)
	err := s.update(ctx, func(tx Tx) error { return s.write(tx, "", commit{Sandbox: next, Checkpoint: &cp}) })
	return cp, err
}

// checkpointLive checkpoints a sandbox that has a container: by switching when
// no living process can write or miss anything by it, else by copying.
func (s *Service) checkpointLive(ctx context.Context, sb Sandbox, c Container, cp Checkpoint, keepRoot bool) (Checkpoint, error) {
	if !keepRoot {
		// After a copy, a first look at the running sandbox spares preparing a switch
		// that would then not be made; what decides is the look while it is frozen.
		blocked := false
		if s.wasBusy(sb.ID) {
			var err error
			if blocked, err = s.blocked(c, sb); err != nil {
				return Checkpoint{}, err
			}
		}
		if !blocked {
			done, err := s.switchUpper(ctx, sb, c, &cp)
			if err != nil || done {
				s.setBusy(sb.ID, false)
				return cp, err
			}
		}
		s.setBusy(sb.ID, true)
	}
	frozen := func(ctx context.Context, while func(context.Context) error) (time.Duration, error) {
		return s.whileFrozen(ctx, sb, c, while)
	}
	return s.copyUpper(ctx, sb, cp, frozen, func(*Checkpoint) {})
}

// wasBusy says whether the sandbox's last checkpoint had to copy.
func (s *Service) wasBusy(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live[id] != nil && s.live[id].busy
}

func (s *Service) setBusy(id string, busy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.live[id]; l != nil {
		l.busy = busy
	}
}

func (s *Service) blocked(c Container, sb Sandbox) (bool, error) {
	pids, err := c.Processes()
	if err != nil {
		return false, err
	}
	b, err := s.o.Layers.Blockers(pids, c.PID())
	if err != nil {
		return false, err
	}
	if len(b) > 0 {
		s.log.Debug("checkpoint copies", "sandbox", sb.ID, "pid", b[0].PID, "comm", b[0].Comm, "reason", b[0].Reason, "path", b[0].Path)
	}
	return len(b) > 0, nil
}

// rebase gives the layers to mount below the sealed upper: the present base, or,
// where its layers have been squashed meanwhile, the squashed ones with the
// identity layer made anew on top of them.
func (s *Service) rebase(ctx context.Context, sb *Sandbox) (unpin func(), err error) {
	at := slices.Index(sb.Base, sb.Identity)
	plain := slices.Concat(sb.Base[:at], sb.Base[at+1:])
	if slices.Equal(plain, sb.Below) {
		return func() {}, nil
	}
	img, err := s.imageOf(ctx, sb.ImageID)
	if err != nil {
		return nil, err
	}
	identity := s.o.NewID("l")
	unpin = s.Pin(identity)
	changed := sb.Below[:len(sb.Below)-len(img.Layers)]
	if err := s.writeIdentity(ctx, *sb, identity, sb.Below, changed, sb.Base[:at]); err != nil {
		unpin()
		return nil, err
	}
	sb.Identity, sb.Base = identity, slices.Concat([]string{identity}, sb.Below)
	return unpin, nil
}

func (s *Service) imageOf(ctx context.Context, id string) (img Image, err error) {
	err = s.o.Store.View(ctx, func(tx Tx) (err error) { img, err = tx.Image(id); return err })
	return img, err
}

// switchUpper seals the upper and attaches a fresh one over it. done is false,
// and nothing has changed, when a living process forbids it.
func (s *Service) switchUpper(ctx context.Context, sb Sandbox, c Container, cp *Checkpoint) (done bool, err error) {
	next := sb
	unpinIdentity, err := s.rebase(ctx, &next)
	if err != nil {
		return false, err
	}
	defer unpinIdentity()
	upper := s.o.NewID("l")
	defer s.Pin(upper)()
	next.Base = slices.Concat([]string{sb.Upper}, next.Base)
	made := *cp
	sealed(&next, &made, upper)
	next.UpdatedAt = s.o.Now()
	op, err := s.journal(ctx, opCheckpoint, sb.ID, []string{upper, next.Identity}, pending{Upper: upper, Commit: commit{Sandbox: next, Checkpoint: &made}})
	if err != nil {
		return false, err
	}
	var u undo
	defer u.run(ctx)
	u.add(func(ctx context.Context) { s.unjournal(ctx, op) })
	if err := s.reach("checkpoint.journalled"); err != nil {
		return false, err
	}
	if err := s.o.Layers.CreateUpper(ctx, upper, sb.Project, sb.Config.Resources.DiskBytes); err != nil {
		return false, err
	}
	u.add(func(ctx context.Context) { s.remove(ctx, upper) })
	target := Target{PID: c.PID(), IDBase: c.IDBase(), Hostname: sb.Hostname}
	p, err := s.o.Layers.Prepare(ctx, target, Stack{Upper: upper, Layers: next.Base})
	if err != nil {
		return false, err
	}
	u.add(func(context.Context) { p.Close() })
	if err := s.reach("checkpoint.prepared"); err != nil {
		return false, err
	}
	var old io.Closer
	froze, err := s.whileFrozen(ctx, sb, c, func(ctx context.Context) error {
		if err := s.reach("checkpoint.frozen"); err != nil {
			return err
		}
		blocked, err := s.blocked(c, sb)
		if err != nil {
			return err
		}
		if blocked {
			return errMustCopy
		}
		old, err = p.Attach(ctx)
		if CodeOf(err) == CodeBusy {
			return errMustCopy
		}
		if err == nil {
			u.release()
			s.passed("checkpoint.attached")
		}
		return err
	})
	if errors.Is(err, errMustCopy) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	s.closeLater(old, p)
	s.passed("checkpoint.thawed")
	made.Timings.FreezeMS = milliseconds(froze)
	made.Timings.TotalMS = s.took(made)
	if err := s.finish(ctx, op, commit{Sandbox: next, Checkpoint: &made}); err != nil {
		return false, err
	}
	*cp = made
	s.passed("checkpoint.committed")
	return true, nil
}

// errMustCopy: a living process forbids the switch.
var errMustCopy = errors.New("a process forbids the switch")

// whileFrozen calls while with every process of the sandbox frozen.
func (s *Service) whileFrozen(ctx context.Context, sb Sandbox, c Container, while func(context.Context) error) (time.Duration, error) {
	begin := time.Now()
	thaw, err := s.freeze(ctx, sb, c)
	if err != nil {
		return 0, err
	}
	defer thaw()
	if err := while(ctx); err != nil {
		return 0, err
	}
	thaw()
	return time.Since(begin), nil
}

// freeze stops every process of a running sandbox; thaw may be called twice.
func (s *Service) freeze(ctx context.Context, sb Sandbox, c Container) (thaw func(), err error) {
	if sb.State == StatePaused {
		return func() {}, nil
	}
	thaw = sync.OnceFunc(func() { s.thaw(ctx, c) })
	if err := c.Freeze(ctx); err != nil {
		thaw()
		return nil, err
	}
	return thaw, nil
}

// stopper calls while when the processes of a sandbox stand still, and returns for how
// long they did.
type stopper func(ctx context.Context, while func(context.Context) error) (time.Duration, error)

// copyUpper copies the upper while the sandbox runs and, when it stands still, again
// what has changed meanwhile. The sandbox goes on writing its upper; the copy stands
// on the same layers. stop makes it stand still while it calls while, whose error it
// returns if there is one; add completes the checkpoint.
func (s *Service) copyUpper(ctx context.Context, sb Sandbox, cp Checkpoint, stop stopper, add func(*Checkpoint)) (Checkpoint, error) {
	dst := s.o.NewID("l")
	defer s.Pin(dst)()
	var u undo
	defer u.run(ctx)
	u.add(func(ctx context.Context) { s.remove(ctx, dst) })
	capture, err := s.o.Layers.StartCapture(ctx, sb.Upper, dst, sb.Captured)
	if err != nil {
		return Checkpoint{}, err
	}
	defer capture.Close()
	unchanged := false
	froze, err := stop(ctx, func(ctx context.Context) (err error) {
		if err := s.reach("copy.frozen"); err != nil {
			return err
		}
		unchanged, err = capture.Finish(ctx)
		return err
	})
	if err != nil {
		return Checkpoint{}, err
	}
	cp.Timings.FreezeMS = milliseconds(froze)
	if err := capture.Commit(ctx); err != nil {
		return Checkpoint{}, err
	}
	if err := s.reach("copy.captured"); err != nil {
		return Checkpoint{}, err
	}
	add(&cp)
	if unchanged && !cp.Processes && sb.Head != "" && !sb.HeadMoved && cp.Kind != KindBeforeRestore {
		head, err := s.getCheckpoint(ctx, sb.Head)
		if err != nil {
			return Checkpoint{}, err
		}
		head.Skipped, head.Timings = true, cp.Timings
		return head, nil
	}
	cp.Method = MethodCopy
	if unchanged { // dst was not made: the former copy serves again
		cp.Stack = slices.Concat([]string{sb.Captured}, sb.Below)
	} else {
		cp.Layer, cp.Stack = dst, slices.Concat([]string{dst}, sb.Below)
		sb.Captured = dst
	}
	sb.Head, sb.HeadMoved, sb.UpdatedAt = cp.ID, false, s.o.Now()
	cp.Timings.TotalMS = s.took(cp)
	if err := s.update(ctx, func(tx Tx) error { return s.write(tx, "", commit{Sandbox: sb, Checkpoint: &cp}) }); err != nil {
		return Checkpoint{}, err
	}
	u.release()
	s.passed("copy.committed")
	return cp, nil
}
