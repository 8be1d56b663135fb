package api

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"cairn/api/types"
	"cairn/sandbox"
)

func each[A, B any](in []A, f func(A) B) []B {
	out := make([]B, len(in))
	for i, a := range in {
		out[i] = f(a)
	}
	return out
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

func orDefault[T any](p *T, d T) T {
	if p == nil {
		return d
	}
	return *p
}

func unlessZero(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func page(cursor *string, limit *int) sandbox.Page {
	return sandbox.Page{Cursor: value(cursor), Limit: orDefault(limit, 100)}
}

// labels reads "key=value" filters; their form is validated already.
func labels(filter *[]string) map[string]string {
	if filter == nil {
		return nil
	}
	m := make(map[string]string)
	for _, f := range *filter {
		k, v, _ := strings.Cut(f, "=")
		m[k] = v
	}
	return m
}

func sandboxOf(s sandbox.Sandbox) types.Sandbox {
	c := s.Config
	return types.Sandbox{
		Id: s.ID, Name: s.Name, State: types.SandboxState(s.State), Reason: s.Reason, Image: s.ImageName, ImageId: s.ImageID,
		Command: append([]string{}, c.Command...), Env: orEmpty(c.Env), Cwd: c.Cwd, User: c.User,
		Resources: resourcesOf(c.Resources), Network: types.Network(c.Network),
		Mounts: each(c.Mounts, func(m sandbox.Mount) types.Mount { return types.Mount{Source: m.Source, Target: m.Target} }),
		Hooks:  each(c.Hooks, hookOf),
		Labels: orEmpty(s.Labels), Head: s.Head, ForkedFrom: s.ForkedFrom, Asleep: s.Asleep, Generation: s.Generation, Hostname: s.Hostname,
		CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt,
	}
}

func resourcesOf(r sandbox.Resources) types.Resources {
	return types.Resources{Cpus: &r.CPUs, MemoryBytes: &r.MemoryBytes, Pids: &r.PIDs, DiskBytes: &r.DiskBytes}
}

func resources(r *types.Resources) sandbox.Resources {
	if r == nil {
		return sandbox.Resources{}
	}
	return sandbox.Resources{CPUs: value(r.Cpus), MemoryBytes: value(r.MemoryBytes), PIDs: value(r.Pids), DiskBytes: value(r.DiskBytes)}
}

// hooks is nil for nil: a list that is given may be empty, and says so.
func hooks(list *types.Hooks) []sandbox.Hook {
	if list == nil {
		return nil
	}
	return each(*list, hook)
}

func hook(h types.Hook) sandbox.Hook {
	return sandbox.Hook{
		Event: sandbox.HookEvent(h.Event), Command: value(h.Command), URL: value(h.Url),
		Timeout: time.Duration(value(h.TimeoutMs)) * time.Millisecond, OnFailure: sandbox.OnFailure(value(h.OnFailure)),
	}
}

func hookOf(h sandbox.Hook) types.Hook {
	out := types.Hook{Event: types.HookEvent(h.Event), Url: optional(h.URL)}
	if len(h.Command) > 0 {
		out.Command = &h.Command
	}
	timeout, fail := h.Timeout.Milliseconds(), types.HookOnFailure(h.OnFailure)
	out.TimeoutMs, out.OnFailure = &timeout, &fail
	return out
}

func trialOf(t sandbox.Trial) *types.Trial {
	return &types.Trial{
		Ok: t.OK, Processes: t.Processes, DurationMs: float64(t.Duration.Microseconds()) / 1000, Error: optional(t.Error),
	}
}

func imageOf(i sandbox.Image) types.Image {
	return types.Image{
		Id: i.ID, Name: i.Name, Digest: i.Digest, Layers: append([]string{}, i.Layers...), Env: orEmpty(i.Env), Cwd: i.Cwd, User: i.User,
		Command: append([]string{}, i.Command...), SizeBytes: i.SizeBytes, Files: i.Files, Labels: orEmpty(i.Labels), CreatedAt: i.CreatedAt,
	}
}

func timingsOf(t sandbox.Timings) types.Timings {
	return types.Timings{FreezeMs: t.FreezeMS, TotalMs: t.TotalMS}
}

func checkpointOf(c sandbox.Checkpoint) types.Checkpoint {
	return types.Checkpoint{
		Id: c.ID, Name: c.Name, Notes: c.Notes, Labels: orEmpty(c.Labels), Kind: types.CheckpointKind(c.Kind), SandboxId: c.SandboxID,
		Sandbox: c.Sandbox, Parent: c.Parent, Children: append([]string{}, c.Children...), Image: c.ImageName, ImageId: c.ImageID,
		Generation: c.Generation, Skipped: c.Skipped, Method: types.CheckpointMethod(c.Method), Processes: c.Processes, Reason: c.Reason,
		Durability: types.Durability(c.Durability), Digest: c.Digest, Timings: timingsOf(c.Timings), Sizes: types.Sizes{
			LayerBytes: c.Sizes.LayerBytes, LayerFiles: c.Sizes.LayerFiles, ProcessBytes: c.Sizes.ProcessBytes,
			ExclusiveBytes: c.Sizes.ExclusiveBytes, SharedBytes: c.Sizes.SharedBytes,
		}, Layers: len(c.Stack), Versions: orEmpty(c.Versions), CreatedAt: c.CreatedAt, DurableAt: unlessZero(c.DurableAt),
	}
}

func processOf(p sandbox.Process) types.Process {
	return types.Process{
		Id: p.ID, SandboxId: p.SandboxID, Command: append([]string{}, p.Command...), Cwd: p.Cwd, User: p.User, Background: p.Background,
		Main: p.Main, Tty: p.TTY, Hook: optional(string(p.Hook)), Pid: p.PID, State: types.ProcessState(p.State), ExitCode: p.ExitCode, Signal: p.Signal, TimedOut: p.TimedOut,
		Truncated: p.Truncated, StartedAt: p.StartedAt, ExitedAt: unlessZero(p.ExitedAt),
	}
}

func eventOf(e sandbox.Event) types.Event {
	out := types.Event{Seq: e.Seq, Time: e.Time, Type: e.Type, Sandbox: e.Sandbox, Subject: e.Subject, Operation: optional(e.Operation)}
	if e.Data != nil {
		out.Data = &e.Data
	}
	return out
}

func changeOf(c sandbox.Change) types.Change {
	out := types.Change{
		Path: c.Path, Kind: types.ChangeKind(c.Kind), Type: c.Type, OldType: optional(c.OldType),
		OldSizeBytes: c.OldSize, NewSizeBytes: c.NewSize, OldMode: octal(c.OldMode), NewMode: octal(c.NewMode), ContentChanged: c.ContentChanged,
	}
	if !utf8.ValidString(c.Path) {
		raw := []byte(c.Path)
		out.Path, out.PathBase64 = strings.ToValidUTF8(c.Path, "\uFFFD"), &raw
	}
	return out
}

func octal(mode uint32) string { return fmt.Sprintf("%04o", mode&0o7777) }

func forkResultsOf(ctx context.Context, results []sandbox.ForkResult) types.ForkResults {
	return types.ForkResults{Items: each(results, func(r sandbox.ForkResult) types.ForkResult {
		out := types.ForkResult{Timings: timingsOf(r.Timings)}
		if r.Err != nil {
			p := problemOf(ctx, r.Err)
			out.Error = &p
		} else {
			sb := sandboxOf(r.Sandbox)
			out.Sandbox = &sb
		}
		return out
	})}
}

func restoredOf(r sandbox.RestoreResult) types.RestoredSandbox {
	s := sandboxOf(r.Sandbox)
	return types.RestoredSandbox{
		Id: s.Id, Name: s.Name, State: s.State, Reason: s.Reason, Image: s.Image, ImageId: s.ImageId, Command: s.Command, Env: s.Env, Cwd: s.Cwd,
		User: s.User, Resources: s.Resources, Network: s.Network, Mounts: s.Mounts, Hooks: s.Hooks, Labels: s.Labels, Head: s.Head, ForkedFrom: s.ForkedFrom,
		Asleep: s.Asleep, Generation: s.Generation, Hostname: s.Hostname, CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt,
		Undo: r.Undo, Processes: r.Processes, Timings: timingsOf(r.Timings),
	}
}
