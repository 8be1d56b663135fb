package sandbox

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"
)

// trialTime bounds a trial restore.
const trialTime = 5 * time.Minute

// Trial is how a trial restore went.
type Trial struct {
	OK        bool
	Processes int           // that ran in it, by the kernel's count
	Duration  time.Duration // until everything had been looked at
	Error     string        // why it is not OK
}

// TrialRestore restores a checkpoint, with its processes if it has them, into a container
// that nobody sees, has no network, and is destroyed again; and looks whether everything
// recorded is alive there. Hooks are not run, nor is the command started. The error is for
// what kept it from being tried: CodeNotFound, CodeLost, CodeCorrupt, CodeCancelled.
func (s *Service) TrialRestore(ctx context.Context, id string) (Trial, error) {
	cp, release, err := s.hold(ctx, id)
	if err != nil {
		return Trial{}, err
	}
	defer release()
	begin := time.Now()
	limited, cancel := context.WithTimeout(ctx, trialTime)
	defer cancel()
	var t Trial
	err = s.trial(limited, cp, &t)
	t.Duration = time.Since(begin)
	switch {
	case ctx.Err() != nil:
		return Trial{}, Wrap(context.Cause(ctx), CodeCancelled, "the caller went away")
	case err == nil:
		t.OK = true
		return t, nil
	case errors.Is(err, context.DeadlineExceeded):
		t.Error = "it did not finish within " + trialTime.String()
	default:
		t.Error = messageOf(err)
	}
	s.log.Warn("a trial restore failed", "checkpoint", id, "err", err)
	return t, nil
}

func (s *Service) trial(ctx context.Context, cp Checkpoint, t *Trial) error {
	sb, img, err := s.throwaway(ctx, cp)
	if err != nil {
		return err
	}
	var u undo
	defer u.run(ctx)
	a, err := s.freshUpper(ctx, sb, cp.Stack, len(img.Layers))
	if err != nil {
		return err
	}
	u.add(func(ctx context.Context) {
		s.remove(ctx, a.upper)
		s.remove(ctx, a.identity)
		a.unpin()
		if err := s.o.Layers.SetLimit(sb.Project, 0); err != nil {
			s.log.Warn("cannot lift the disk limit of a trial", "checkpoint", cp.ID, "err", err)
		}
	})
	var processes *Checkpoint
	if cp.Processes {
		if err := s.o.Dumps.Usable(ctx); err != nil {
			return err
		}
		cp, done, err := s.restorable(ctx, cp)
		if err != nil {
			return err
		}
		defer done()
		processes = &cp
	}
	c, err := s.start(ctx, &sb, a, processes, "trial")
	if err != nil {
		return err
	}
	u.add(func(ctx context.Context) { s.destroy(ctx, c.Name()) })
	if err := s.reach("trial.started"); err != nil {
		return err
	}
	return s.inspect(ctx, c, cp, t)
}

// throwaway makes the sandbox of a trial, which is recorded nowhere.
func (s *Service) throwaway(ctx context.Context, cp Checkpoint) (sb Sandbox, img Image, err error) {
	cfg := cp.Config
	cfg.Network, cfg.Hooks = NetworkNone, nil
	cfg.Env, cfg.Mounts = maps.Clone(cfg.Env), slices.Clone(cfg.Mounts)
	if err := s.checkConfig(&cfg); err != nil { // what is allowed may have changed
		return Sandbox{}, Image{}, err
	}
	sb = Sandbox{
		ID: s.o.NewID("sbx"), Config: cfg, ImageID: cp.ImageID, Hostname: hostname(cp.Sandbox),
		Generation: cp.Generation + 1,
	}
	err = s.o.Store.Update(ctx, func(tx Tx) error {
		if img, err = tx.Image(cp.ImageID); err != nil {
			return err
		}
		sb.Project, err = tx.NextProject()
		return err
	})
	return sb, img, err
}

// inspect looks whether what a checkpoint recorded is alive in a container.
func (s *Service) inspect(ctx context.Context, c Container, cp Checkpoint, t *Trial) error {
	g := c.Guest()
	if err := g.Ready(ctx); err != nil {
		return err
	}
	pids, err := c.Processes()
	if err != nil {
		return err
	}
	const own = 2 // PID 1 and the stem
	t.Processes = max(0, len(pids)-own)
	if !cp.Processes {
		return nil
	}
	var ended int
	for _, p := range cp.Running {
		const exists = 0 // the signal that is none
		err := g.Signal(ctx, p.ID, exists)
		switch CodeOf(err) {
		case "":
			continue
		case CodeConflict, CodeNotFound:
		default:
			return err
		}
		// One that came to its own end in the meantime had come back.
		exit, err := endOf(ctx, g, p.ID)
		if err != nil || exit.Lost || exit.Signal != "" {
			return Errorf(CodeCorrupt, "process %s (%s), which ran at the checkpoint, did not come back", p.ID, quote(p.Command[0]))
		}
		ended++
	}
	if alive := len(cp.Running) - ended; t.Processes < alive {
		return Errorf(CodeCorrupt, "%d processes run, at least %d did at the checkpoint", t.Processes, alive)
	}
	return nil
}

// endOf gives how a process ended that is said to have.
func endOf(ctx context.Context, g Guest, id string) (Exit, error) {
	const soon = time.Second
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	return g.Wait(ctx, id, 0)
}
