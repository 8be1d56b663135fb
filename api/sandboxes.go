package api

import (
	"context"
	"time"

	"cairn/api/types"
	"cairn/sandbox"
)

func (s *server) ListSandboxes(ctx context.Context, r ListSandboxesRequestObject) (ListSandboxesResponseObject, error) {
	f := sandbox.SandboxFilter{State: sandbox.State(value(r.Params.State)), Labels: labels(r.Params.Label)}
	l, err := s.Service.Sandboxes(ctx, f, page(r.Params.Cursor, r.Params.Limit))
	if err != nil {
		return nil, err
	}
	return ListSandboxes200JSONResponse{Items: each(l.Items, sandboxOf), NextCursor: l.NextCursor}, nil
}

func (s *server) CreateSandbox(ctx context.Context, r CreateSandboxRequestObject) (CreateSandboxResponseObject, error) {
	b := r.Body
	req := sandbox.CreateRequest{
		Image: b.Image, Name: value(b.Name), Labels: value(b.Labels),
		Config: sandbox.Config{
			Command: value(b.Command), Env: value(b.Env), Cwd: value(b.Cwd), User: value(b.User),
			Resources: resources(b.Resources), Network: sandbox.Network(value(b.Network)),
			Mounts: each(value(b.Mounts), func(m types.Mount) sandbox.Mount { return sandbox.Mount{Source: m.Source, Target: m.Target} }),
			Hooks:  each(value(b.Hooks), hook),
		},
	}
	sb, err := s.Service.Create(ctx, req)
	if err != nil {
		return nil, err
	}
	return CreateSandbox201JSONResponse(sandboxOf(sb)), nil
}

func (s *server) GetSandbox(ctx context.Context, r GetSandboxRequestObject) (GetSandboxResponseObject, error) {
	sb, err := s.Service.Sandbox(ctx, r.SandboxId)
	if err != nil {
		return nil, err
	}
	return GetSandbox200JSONResponse(sandboxOf(sb)), nil
}

func (s *server) UpdateSandbox(ctx context.Context, r UpdateSandboxRequestObject) (UpdateSandboxResponseObject, error) {
	u := sandbox.SandboxUpdate{Name: r.Body.Name, Hooks: hooks(r.Body.Hooks)}
	if r.Body.Labels != nil {
		u.Labels = orEmpty(*r.Body.Labels)
	}
	sb, err := s.Service.UpdateSandbox(ctx, r.SandboxId, u)
	if err != nil {
		return nil, err
	}
	return UpdateSandbox200JSONResponse(sandboxOf(sb)), nil
}

func (s *server) DeleteSandbox(ctx context.Context, r DeleteSandboxRequestObject) (DeleteSandboxResponseObject, error) {
	if err := s.Service.Delete(ctx, r.SandboxId); err != nil {
		return nil, err
	}
	return DeleteSandbox204Response{}, nil
}

func (s *server) PauseSandbox(ctx context.Context, r PauseSandboxRequestObject) (PauseSandboxResponseObject, error) {
	sb, err := s.Service.Pause(ctx, r.SandboxId)
	if err != nil {
		return nil, err
	}
	return PauseSandbox200JSONResponse(sandboxOf(sb)), nil
}

func (s *server) ResumeSandbox(ctx context.Context, r ResumeSandboxRequestObject) (ResumeSandboxResponseObject, error) {
	sb, err := s.Service.Resume(ctx, r.SandboxId)
	if err != nil {
		return nil, err
	}
	return ResumeSandbox200JSONResponse(sandboxOf(sb)), nil
}

func (s *server) GetUsage(ctx context.Context, r GetUsageRequestObject) (GetUsageResponseObject, error) {
	u, err := s.Service.Usage(ctx, r.SandboxId)
	if err != nil {
		return nil, err
	}
	return GetUsage200JSONResponse{
		CpuMs: float64(u.CPUNanos) / float64(time.Millisecond), MemoryBytes: u.MemoryBytes, Pids: u.PIDs, DiskBytes: u.DiskBytes,
	}, nil
}
