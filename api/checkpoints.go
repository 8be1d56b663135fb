package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"cairn/api/types"
	"cairn/sandbox"
)

func (s *server) CreateCheckpoint(ctx context.Context, r CreateCheckpointRequestObject) (CreateCheckpointResponseObject, error) {
	b := orDefault(r.Body, types.CreateCheckpoint{})
	c, err := s.Service.Checkpoint(ctx, r.SandboxId, sandbox.CheckpointRequest{
		Name: value(b.Name), Notes: value(b.Notes), Labels: value(b.Labels), Processes: string(value(b.Processes)),
		Wait: sandbox.Durability(orDefault(b.Wait, types.CreateCheckpointWaitCaptured)), Stop: value(b.Stop),
	})
	if err != nil {
		return nil, err
	}
	if c.Skipped {
		return CreateCheckpoint200JSONResponse(checkpointOf(c)), nil
	}
	return CreateCheckpoint201JSONResponse(checkpointOf(c)), nil
}

func (s *server) ListSandboxCheckpoints(ctx context.Context, r ListSandboxCheckpointsRequestObject) (ListSandboxCheckpointsResponseObject, error) {
	sb, err := s.Service.Sandbox(ctx, r.SandboxId)
	if err != nil {
		return nil, err
	}
	f := sandbox.CheckpointFilter{SandboxID: sb.ID, Name: value(r.Params.Name), Labels: labels(r.Params.Label)}
	l, err := s.Service.Checkpoints(ctx, f, page(r.Params.Cursor, r.Params.Limit))
	if err != nil {
		return nil, err
	}
	return ListSandboxCheckpoints200JSONResponse{Items: each(l.Items, checkpointOf), NextCursor: l.NextCursor}, nil
}

func (s *server) ListCheckpoints(ctx context.Context, r ListCheckpointsRequestObject) (ListCheckpointsResponseObject, error) {
	f := sandbox.CheckpointFilter{SandboxID: value(r.Params.Sandbox), Name: value(r.Params.Name), Labels: labels(r.Params.Label)}
	l, err := s.Service.Checkpoints(ctx, f, page(r.Params.Cursor, r.Params.Limit))
	if err != nil {
		return nil, err
	}
	return ListCheckpoints200JSONResponse{Items: each(l.Items, checkpointOf), NextCursor: l.NextCursor}, nil
}

func (s *server) GetCheckpoint(ctx context.Context, r GetCheckpointRequestObject) (GetCheckpointResponseObject, error) {
	c, err := s.Service.GetCheckpoint(ctx, r.CheckpointId)
	if err != nil {
		return nil, err
	}
	return GetCheckpoint200JSONResponse(checkpointOf(c)), nil
}

func (s *server) UpdateCheckpoint(ctx context.Context, r UpdateCheckpointRequestObject) (UpdateCheckpointResponseObject, error) {
	u := sandbox.CheckpointUpdate{Name: r.Body.Name, Notes: r.Body.Notes}
	if r.Body.Labels != nil {
		u.Labels = orEmpty(*r.Body.Labels)
	}
	c, err := s.Service.UpdateCheckpoint(ctx, r.CheckpointId, u)
	if err != nil {
		return nil, err
	}
	return UpdateCheckpoint200JSONResponse(checkpointOf(c)), nil
}

func (s *server) DeleteCheckpoint(ctx context.Context, r DeleteCheckpointRequestObject) (DeleteCheckpointResponseObject, error) {
	if err := s.Service.DeleteCheckpoint(ctx, r.CheckpointId); err != nil {
		return nil, err
	}
	return DeleteCheckpoint204Response{}, nil
}

func (s *server) VerifyCheckpoint(ctx context.Context, r VerifyCheckpointRequestObject) (VerifyCheckpointResponseObject, error) {
	c, err := s.Service.Verify(ctx, r.CheckpointId)
	if err != nil {
		return nil, err
	}
	answer := checkpointOf(c)
	if value(r.Body).Trial != nil && *r.Body.Trial {
		t, err := s.Service.TrialRestore(ctx, r.CheckpointId)
		if err != nil {
			return nil, err
		}
		answer.Trial = trialOf(t)
	}
	return VerifyCheckpoint200JSONResponse(answer), nil
}

func (s *server) RestoreSandbox(ctx context.Context, r RestoreSandboxRequestObject) (RestoreSandboxResponseObject, error) {
	b := r.Body
	res, err := s.Service.Restore(ctx, r.SandboxId, sandbox.RestoreRequest{
		Checkpoint: b.Checkpoint, Paths: value(b.Paths), Processes: string(value(b.Processes)), Verify: value(b.Verify),
	})
	if err != nil {
		return nil, err
	}
	return RestoreSandbox200JSONResponse(restoredOf(res)), nil
}

func forkRequest(body *types.Fork) sandbox.ForkRequest {
	b := value(body)
	req := sandbox.ForkRequest{
		Count: orDefault(b.Count, 1), Name: value(b.Name), Labels: value(b.Labels), Env: value(b.Env),
		Network: sandbox.Network(value(b.Network)), Hooks: hooks(b.Hooks), Processes: string(value(b.Processes)), Verify: value(b.Verify),
	}
	if b.Command != nil {
		req.Command = append([]string{}, *b.Command...) // an empty one means none, nil the recorded one
	}
	if b.Resources != nil {
		res := resources(b.Resources)
		req.Resources = &res
	}
	return req
}

func (s *server) ForkCheckpoint(ctx context.Context, r ForkCheckpointRequestObject) (ForkCheckpointResponseObject, error) {
	res, err := s.Service.Fork(ctx, r.CheckpointId, forkRequest(r.Body))
	if err != nil {
		return nil, err
	}
	return ForkCheckpoint201JSONResponse(forkResultsOf(ctx, res)), nil
}

func (s *server) ForkSandbox(ctx context.Context, r ForkSandboxRequestObject) (ForkSandboxResponseObject, error) {
	res, err := s.Service.ForkSandbox(ctx, r.SandboxId, forkRequest(r.Body))
	if err != nil {
		return nil, err
	}
	return ForkSandbox201JSONResponse(forkResultsOf(ctx, res)), nil
}

func (s *server) DiffCheckpoints(ctx context.Context, r DiffCheckpointsRequestObject) (DiffCheckpointsResponseObject, error) {
	from, to := r.CheckpointId, r.Params.To
	if p := r.Params.Path; p != nil {
		text, binary, err := s.Service.FileDiff(ctx, from, to, *p)
		if err != nil {
			return nil, err
		}
		return DiffCheckpoints200JSONResponse{From: from, To: to, Items: []types.Change{}, Path: p, Diff: &text, Binary: &binary}, nil
	}
	return diffOf(from, to, func(visit func(sandbox.Change) error) error { return s.Service.Diff(ctx, from, to, visit) }), nil
}

func (s *server) DiffSandbox(ctx context.Context, r DiffSandboxRequestObject) (DiffSandboxResponseObject, error) {
	sb, err := s.Service.Sandbox(ctx, r.SandboxId)
	if err != nil {
		return nil, err
	}
	from := orDefault(r.Params.From, sb.Head)
	if p := r.Params.Path; p != nil {
		if from == "" {
			return nil, &sandbox.Error{Code: sandbox.CodeConflict, Field: "from", Message: "the sandbox has no checkpoint yet to compare with"}
		}
		text, binary, err := s.Service.FileDiffNow(ctx, sb.ID, from, *p)
		if err != nil {
			return nil, err
		}
		return DiffSandbox200JSONResponse{From: from, To: sb.ID, Items: []types.Change{}, Path: p, Diff: &text, Binary: &binary}, nil
	}
	return diffOf(from, sb.ID, func(visit func(sandbox.Change) error) error { return s.Service.DiffNow(ctx, sb.ID, from, visit) }), nil
}

// diffOf writes changes as they are found, so that memory does not grow with
// them. An error that comes early enough is still answered as a problem.
func diffOf(from, to string, walk func(visit func(sandbox.Change) error) error) respond {
	return func(w http.ResponseWriter) error {
		const early = 64 << 10
		head, err := json.Marshal(struct {
			From string `json:"from"`
			To   string `json:"to"`
		}{from, to})
		if err != nil {
			return fmt.Errorf("encode answer: %w", err)
		}
		var buf bytes.Buffer
		buf.Write(head[:len(head)-1])
		buf.WriteString(`,"items":[`)
		first := true
		flush := func() error {
			w.Header().Set("Content-Type", "application/json")
			_, err := buf.WriteTo(w)
			return err
		}
		err = walk(func(c sandbox.Change) error {
			item, err := json.Marshal(changeOf(c))
			if err != nil {
				return fmt.Errorf("encode change: %w", err)
			}
			if !first {
				buf.WriteByte(',')
			}
			first = false
			buf.Write(item)
			if buf.Len() < early {
				return nil
			}
			return flush()
		})
		if err != nil {
			return err
		}
		buf.WriteString("]}")
		return flush()
	}
}
