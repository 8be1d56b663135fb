package sandbox

import (
	"context"
)

// Processes lists what was started in a sandbox, newest first.
func (s *Service) Processes(ctx context.Context, idOrName string) ([]Process, error) {
	id, err := s.resolve(ctx, idOrName)
	if err != nil {
		return nil, err
	}
	var list []Process
	err = s.o.Store.View(ctx, func(tx Tx) (err error) { list, err = tx.Processes(id); return err })
	for i := range list {
		if p := s.liveProcess(id, list[i].ID); p != nil {
			list[i] = p.get()
		}
	}
	return list, err
}

// Process gives one process of a sandbox.
func (s *Service) Process(ctx context.Context, idOrName, procID string) (proc Process, err error) {
	id, err := s.resolve(ctx, idOrName)
	if err != nil {
		return Process{}, err
	}
	if p := s.liveProcess(id, procID); p != nil {
		return p.get(), nil
	}
	err = s.o.Store.View(ctx, func(tx Tx) (err error) { proc, err = tx.Process(id, procID); return err })
	return proc, err
}

func (s *Service) liveProcess(sandboxID, procID string) *liveProcess {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.live[sandboxID]; l != nil {
		return l.processes[procID]
	}
	return nil
}

// Wait waits for the end of a process.
func (s *Service) Wait(ctx context.Context, idOrName, procID string) (Process, error) {
	proc, err := s.Process(ctx, idOrName, procID)
	if err != nil || proc.State != ProcessRunning {
		return proc, err
	}
	p := s.liveProcess(proc.SandboxID, procID)
	if p == nil { // it ended between the two looks
		return s.Process(ctx, proc.SandboxID, procID)
	}
	select {
	case <-p.done:
		return p.get(), nil
	case <-ctx.Done():
		return Process{}, Wrap(context.Cause(ctx), CodeCancelled, "stopped waiting")
	case <-s.background.Done():
		return Process{}, Wrap(errClosed, CodeUnavailable, "the daemon is stopping")
	}
}

// guest gives the guest that has the process, and the process.
func (s *Service) guest(ctx context.Context, idOrName, procID string) (Guest, Process, error) {
	proc, err := s.Process(ctx, idOrName, procID)
	if err != nil {
		return nil, Process{}, err
	}
	sb, err := s.Sandbox(ctx, proc.SandboxID)
	if err != nil {
		return nil, Process{}, err
	}
	c, err := s.container(sb)
	if err != nil {
		return nil, Process{}, err
	}
	return c.Guest(), proc, nil
}

// runningGuest is guest for what only a running process takes.
func (s *Service) runningGuest(ctx context.Context, idOrName, procID string) (Guest, error) {
	g, proc, err := s.guest(ctx, idOrName, procID)
	if err != nil {
		return nil, err
	}
	if proc.State != ProcessRunning {
		return nil, Errorf(CodeConflict, "process %s has ended", procID)
	}
	return g, nil
}

// Follow calls fn with a stream's bytes from offset on until the process ends.
func (s *Service) Follow(ctx context.Context, idOrName, procID string, stream Stream, offset int64, fn func([]byte) error) error {
	g, _, err := s.guest(ctx, idOrName, procID)
	if err != nil {
		return err
	}
	return g.Follow(ctx, procID, stream, offset, fn)
}

// ProcessOutput gives up to max bytes of a stream from offset on.
func (s *Service) ProcessOutput(ctx context.Context, idOrName, procID string, stream Stream, offset int64, max int) (Output, error) {
	g, _, err := s.guest(ctx, idOrName, procID)
	if err != nil {
		return Output{}, err
	}
	return g.Output(procID, stream, offset, max)
}

// Signal sends a signal to the process group, and to the job in the foreground of
// its terminal; CodeConflict when it has ended.
func (s *Service) Signal(ctx context.Context, idOrName, procID string, signal int) error {
	if signal < 1 || signal > 64 {
		return Invalid("signal", "between 1 and 64")
	}
	g, err := s.runningGuest(ctx, idOrName, procID)
	if err != nil {
		return err
	}
	return g.Signal(ctx, procID, signal)
}

// WriteStdin writes to a process that was started with OpenStdin, or types at its
// terminal. It waits while there is no room.
func (s *Service) WriteStdin(ctx context.Context, idOrName, procID string, data []byte) error {
	g, err := s.runningGuest(ctx, idOrName, procID)
	if err != nil {
		return err
	}
	return g.WriteStdin(ctx, procID, data)
}

// CloseStdin ends the stdin of a process that was started with OpenStdin; at a
// terminal it types the end-of-file character.
func (s *Service) CloseStdin(ctx context.Context, idOrName, procID string) error {
	g, err := s.runningGuest(ctx, idOrName, procID)
	if err != nil {
		return err
	}
	return g.CloseStdin(ctx, procID)
}

// endProcesses records that what still ran was lost with its container.
func (s *Service) endProcesses(ctx context.Context, sandboxID string) error {
	return s.update(ctx, func(tx Tx) error {
		list, err := tx.Processes(sandboxID)
		if err != nil {
			return err
		}
		for _, p := range list {
			if p.State != ProcessRunning {
				continue
			}
			p.State, p.ExitedAt = ProcessLost, s.o.Now()
			if err := tx.PutProcess(p); err != nil {
				return err
			}
		}
		return nil
	})
}

// attendAgain waits on for the processes that a former daemon started.
func (s *Service) attendAgain(ctx context.Context, sb Sandbox, c Container) error {
	var list []Process
	err := s.o.Store.View(ctx, func(tx Tx) (err error) { list, err = tx.Processes(sb.ID); return err })
	if err != nil {
		return err
	}
	for _, proc := range list {
		if proc.State != ProcessRunning {
			continue
		}
		r := ExecRequest{}
		if proc.Hook != "" {
			r.Timeout = 1 // nobody waits for it any more
		}
		s.attend(sb.ID, c, attended(c, proc), r)
	}
	return nil
}
