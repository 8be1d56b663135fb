package apitest

import (
	"context"
	"time"

	"github.com/oklog/ulid/v2"

	"cairn/sandbox"
)

func (s *Service) Checkpoint(_ context.Context, id string, r sandbox.CheckpointRequest) (sandbox.Checkpoint, error) {
	if err := s.begin("Checkpoint"); err != nil {
		return sandbox.Checkpoint{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sb, err := s.find(id)
	if err != nil {
		return sandbox.Checkpoint{}, err
	}
	if r.Wait != sandbox.DurabilityDurable {
		r.Wait = sandbox.DurabilityCaptured
	}
	c := sandbox.Checkpoint{
		ID: "ckpt_" + ulid.Make().String(), Name: r.Name, Notes: r.Notes, Labels: r.Labels, Kind: sandbox.KindManual, SandboxID: sb.ID, Sandbox: sb.Name,
		Parent: sb.Head, Method: sandbox.MethodSwitch, Durability: r.Wait, CreatedAt: time.Now(), ImageID: sb.ImageID, ImageName: sb.ImageName,
	}
	s.checkpoints = append(s.checkpoints, c)
	sb.Head = c.ID
	return c, nil
}

func (s *Service) GetCheckpoint(_ context.Context, id string) (sandbox.Checkpoint, error) {
	if err := s.begin("GetCheckpoint"); err != nil {
		return sandbox.Checkpoint{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.checkpoints {
		if c.ID == id {
			return c, nil
		}
	}
	return sandbox.Checkpoint{}, missing("checkpoint", id)
}

func (s *Service) Checkpoints(_ context.Context, f sandbox.CheckpointFilter, _ sandbox.Page) (sandbox.List[sandbox.Checkpoint], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var l sandbox.List[sandbox.Checkpoint]
	for _, c := range s.checkpoints {
		if (f.Name == "" || f.Name == c.Name) && (f.SandboxID == "" || f.SandboxID == c.SandboxID) {
			l.Items = append(l.Items, c)
		}
	}
	return l, nil
}

func (s *Service) UpdateCheckpoint(_ context.Context, id string, u sandbox.CheckpointUpdate) (sandbox.Checkpoint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.checkpoints {
		c := &s.checkpoints[i]
		if c.ID != id {
			continue
		}
		if u.Name != nil {
			c.Name = *u.Name
		}
		if u.Notes != nil {
			c.Notes = *u.Notes
		}
		return *c, nil
	}
	return sandbox.Checkpoint{}, missing("checkpoint", id)
}

func (s *Service) DeleteCheckpoint(ctx context.Context, id string) error {
	_, err := s.GetCheckpoint(ctx, id)
	return err
}

func (s *Service) Verify(ctx context.Context, id string) (sandbox.Checkpoint, error) {
	if err := s.begin("Verify"); err != nil {
		return sandbox.Checkpoint{}, err
	}
	return s.GetCheckpoint(ctx, id)
}

// TrialRestore finds one process alive.
func (s *Service) TrialRestore(ctx context.Context, id string) (sandbox.Trial, error) {
	_, err := s.GetCheckpoint(ctx, id)
	return sandbox.Trial{OK: true, Processes: 1, Duration: 1500 * time.Microsecond}, err
}

// Diff gives one change of each kind.
func (s *Service) Diff(_ context.Context, _, _ string, visit func(sandbox.Change) error) error {
	for _, k := range []sandbox.ChangeKind{sandbox.ChangeAdded, sandbox.ChangeModified, sandbox.ChangeDeleted, sandbox.ChangeType, sandbox.ChangeMetadata} {
		if err := visit(sandbox.Change{Path: "/" + string(k), Kind: k, Type: "file", OldMode: 0o644, NewMode: 0o755}); err != nil {
			return err
		}
	}
	return s.begin("Diff")
}

func (s *Service) DiffNow(ctx context.Context, _, from string, visit func(sandbox.Change) error) error {
	return s.Diff(ctx, from, "", visit)
}

func (s *Service) FileDiff(context.Context, string, string, string) (string, bool, error) {
	return "--- a\n+++ b\n", false, s.begin("FileDiff")
}

func (s *Service) FileDiffNow(ctx context.Context, _, from, path string) (string, bool, error) {
	return s.FileDiff(ctx, from, "", path)
}

func (s *Service) Restore(_ context.Context, id string, r sandbox.RestoreRequest) (sandbox.RestoreResult, error) {
	sb, err := s.change("Restore", id, func(sb *sandbox.Sandbox) { sb.Head, sb.Generation = r.Checkpoint, sb.Generation+1 })
	return sandbox.RestoreResult{Sandbox: sb, Timings: sandbox.Timings{TotalMS: 1.5}}, err
}

// Fork fails for every child after the second.
func (s *Service) Fork(ctx context.Context, id string, r sandbox.ForkRequest) ([]sandbox.ForkResult, error) {
	c, err := s.GetCheckpoint(ctx, id)
	if err != nil {
		return nil, err
	}
	var res []sandbox.ForkResult
	for i := range r.Count {
		if i >= 2 {
			res = append(res, sandbox.ForkResult{Err: sandbox.Errorf(sandbox.CodeExhausted, "no capacity for another sandbox")})
			continue
		}
		sb, err := s.Create(ctx, sandbox.CreateRequest{Image: "debian"})
		sb.ForkedFrom, sb.Head = c.ID, c.ID
		res = append(res, sandbox.ForkResult{Sandbox: sb, Err: err})
	}
	return res, nil
}

func (s *Service) ForkSandbox(ctx context.Context, id string, r sandbox.ForkRequest) ([]sandbox.ForkResult, error) {
	c, err := s.Checkpoint(ctx, id, sandbox.CheckpointRequest{})
	if err != nil {
		return nil, err
	}
	return s.Fork(ctx, c.ID, r)
}

func (s *Service) Timeline(context.Context) (sandbox.Timeline, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := sandbox.Timeline{Checkpoints: append([]sandbox.Checkpoint{}, s.checkpoints...)}
	for _, sb := range s.sandboxes {
		t.Heads = append(t.Heads, sandbox.Head{SandboxID: sb.ID, Sandbox: sb.Name, State: sb.State, Checkpoint: sb.Head})
	}
	return t, s.begin2("Timeline")
}

// begin2 is begin for a caller that holds the lock.
func (s *Service) begin2(method string) error {
	if s.Err != nil {
		return s.Err(method)
	}
	return nil
}
