package sandbox

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"
)

// forkParallel is how many children of one request are made at the same time.
const forkParallel = 8

// Fork makes Count sandboxes from a checkpoint. Each child has its own result; one whose
// hooks fail is deleted again;
// the error is for what concerns all of them: CodeInvalid, CodeNotFound,
// CodeCorrupt, CodeLost.
func (s *Service) Fork(ctx context.Context, checkpointID string, r ForkRequest) ([]ForkResult, error) {
	if err := s.checkFork(&r); err != nil {
		return nil, err
	}
	cp, release, err := s.holdVerified(ctx, checkpointID, r.Verify)
	if err != nil {
		return nil, err
	}
	defer release()
	processes, err := wantsProcesses(cp, r.Processes)
	if processes = processes && r.Command == nil; err == nil && processes {
		err = s.o.Dumps.Usable(ctx)
	}
	if err != nil {
		return nil, err
	}
	cfg := cp.Config
	cfg.Env = maps.Clone(cfg.Env)
	if len(r.Env) > 0 && cfg.Env == nil {
		cfg.Env = map[string]string{}
	}
	maps.Copy(cfg.Env, r.Env)
	if r.Command != nil {
		cfg.Command = r.Command
	}
	if r.Resources != nil {
		cfg.Resources = *r.Resources
	}
	if r.Network != "" {
		cfg.Network = r.Network
	}
	if r.Hooks != nil {
		cfg.Hooks = r.Hooks
	}
	if err := s.checkConfig(&cfg); err != nil {
		return nil, err
	}
	if processes {
		var done func()
		if cp, done, err = s.restorable(ctx, cp); err != nil {
			return nil, err
		}
		defer done()
	}
	results := make([]ForkResult, r.Count)
	slots := make(chan struct{}, forkParallel)
	var wg sync.WaitGroup
	for i := range results {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			begin := time.Now()
			name := r.Name
			if name != "" && r.Count > 1 {
				name = fmt.Sprintf("%s-%d", r.Name, i+1)
			}
			results[i].Sandbox, results[i].Err = s.forkOne(ctx, cp, processes, Sandbox{Name: name, Config: cfg, Labels: maps.Clone(r.Labels)})
			if err := results[i].Err; err != nil {
				s.log.WarnContext(ctx, "a child could not be made", "checkpoint", cp.ID, "err", err)
			}
			results[i].Timings.TotalMS = milliseconds(time.Since(begin))
		})
	}
	wg.Wait()
	return results, nil
}

func (s *Service) checkFork(r *ForkRequest) error {
	if r.Count == 0 {
		r.Count = 1
	}
	if r.Count < 1 || r.Count > s.o.MaxForks {
		return Invalid("count", "between 1 and %d", s.o.MaxForks)
	}
	if r.Name != "" {
		if err := checkName("name", r.Name); err != nil {
			return err
		}
	}
	if err := checkLabels(r.Labels); err != nil {
		return err
	}
	if err := checkProcesses(r.Processes); err != nil {
		return err
	}
	if r.Command != nil && r.Processes == processesInclude {
		return Invalid("command", "no command together with processes: those of the checkpoint run on")
	}
	return nil
}

func (s *Service) forkOne(ctx context.Context, cp Checkpoint, processes bool, sb Sandbox) (Sandbox, error) {
	var img Image
	held := cp // its images are kept, those of the record may be others by now
	unlock, err := s.record(ctx, &sb, func(tx Tx) (err error) {
		// Under the transaction: the checkpoint cannot be deleted between this look
		// and the record that keeps its layers.
		if cp, err = tx.Checkpoint(cp.ID); err != nil {
			return err
		}
		img, err = tx.Image(cp.ImageID)
		sb.ImageID, sb.ImageName, sb.Head, sb.ForkedFrom, sb.Below = cp.ImageID, cp.ImageName, cp.ID, cp.ID, cp.Stack
		sb.Generation = cp.Generation + 1 // programs that go on in the child see that it is not what they were started in
		sb.owe(HookAfterFork, cp.ID)
		return err
	})
	if err != nil {
		return Sandbox{}, err
	}
	defer unlock()
	var dumped *Checkpoint
	if processes {
		dumped = &held
	}
	if sb, err = s.launch(ctx, sb, cp.Stack, len(img.Layers), dumped); err != nil {
		return Sandbox{}, err
	}
	if err := s.runDue(ctx, &sb); err != nil {
		if s.background.Err() == nil {
			if gone := s.deleteLocked(ctx, sb); gone != nil {
				s.log.Error("cannot delete a child whose hooks failed", "sandbox", sb.ID, "err", gone)
			}
		}
		return Sandbox{}, err
	}
	return sb, nil
}

// ForkSandbox checkpoints a sandbox and forks that checkpoint.
func (s *Service) ForkSandbox(ctx context.Context, idOrName string, r ForkRequest) ([]ForkResult, error) {
	if err := s.checkFork(&r); err != nil {
		return nil, err
	}
	cp, err := s.Checkpoint(ctx, idOrName, CheckpointRequest{Kind: KindForkPoint, Processes: r.Processes})
	if err != nil {
		return nil, err
	}
	return s.Fork(ctx, cp.ID, r)
}
