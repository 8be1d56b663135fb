package api

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"strings"

	"cairn/api/types"
	"cairn/sandbox"
)

// respond is an answer that writes itself: a stream, a file, a page of metrics.
type respond func(w http.ResponseWriter) error

func (f respond) VisitGetMetricsResponse(w http.ResponseWriter) error         { return f(w) }
func (f respond) VisitStreamEventsResponse(w http.ResponseWriter) error       { return f(w) }
func (f respond) VisitAddImageResponse(w http.ResponseWriter) error           { return f(w) }
func (f respond) VisitExecResponse(w http.ResponseWriter) error               { return f(w) }
func (f respond) VisitGetProcessOutputResponse(w http.ResponseWriter) error   { return f(w) }
func (f respond) VisitAttachProcessResponse(w http.ResponseWriter) error      { return f(w) }
func (f respond) VisitReadFileResponse(w http.ResponseWriter) error           { return f(w) }
func (f respond) VisitReadCheckpointFileResponse(w http.ResponseWriter) error { return f(w) }
func (f respond) VisitDiffCheckpointsResponse(w http.ResponseWriter) error    { return f(w) }
func (f respond) VisitDiffSandboxResponse(w http.ResponseWriter) error        { return f(w) }

func (s *server) GetHealth(context.Context, GetHealthRequestObject) (GetHealthResponseObject, error) {
	return GetHealth200TextResponse("ok\n"), nil
}

func (s *server) GetReady(ctx context.Context, _ GetReadyRequestObject) (GetReadyResponseObject, error) {
	if s.Ready != nil {
		if err := s.Ready(ctx); err != nil {
			if sandbox.CodeOf(err) == sandbox.CodeInternal {
				err = sandbox.Wrap(err, sandbox.CodeUnavailable, "not ready")
			}
			return nil, err
		}
	}
	return GetReady200TextResponse("ok\n"), nil
}

func (s *server) GetMetrics(ctx context.Context, _ GetMetricsRequestObject) (GetMetricsResponseObject, error) {
	if s.Metrics == nil {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "this daemon gives no metrics")
	}
	return respond(func(w http.ResponseWriter) error {
		s.Metrics.ServeHTTP(w, requestOf(ctx))
		return nil
	}), nil
}

func (s *server) GetSpec(context.Context, GetSpecRequestObject) (GetSpecResponseObject, error) {
	return GetSpec200ApplicationvndOaiOpenapiResponse{Body: bytes.NewReader(Spec), ContentLength: int64(len(Spec))}, nil
}

func (s *server) GetInfo(ctx context.Context, _ GetInfoRequestObject) (GetInfoResponseObject, error) {
	info, err := s.Info(ctx)
	if err != nil {
		return nil, err
	}
	return GetInfo200JSONResponse(info), nil
}

func (s *server) GetTimeline(ctx context.Context, _ GetTimelineRequestObject) (GetTimelineResponseObject, error) {
	t, err := s.Service.Timeline(ctx)
	if err != nil {
		return nil, err
	}
	return GetTimeline200JSONResponse{
		Checkpoints: each(t.Checkpoints, checkpointOf),
		Heads: each(t.Heads, func(h sandbox.Head) types.Head {
			return types.Head{SandboxId: h.SandboxID, Sandbox: h.Sandbox, State: types.SandboxState(h.State), Checkpoint: h.Checkpoint}
		}),
	}, nil
}

func (s *server) StreamEvents(ctx context.Context, r StreamEventsRequestObject) (StreamEventsResponseObject, error) {
	after := orDefault(r.Params.After, -1)
	if id := r.Params.LastEventID; id != nil {
		n, err := strconv.ParseInt(strings.TrimSpace(*id), 10, 64)
		if err != nil {
			return nil, sandbox.Invalid("Last-Event-ID", "a number")
		}
		after = n
	}
	return respond(func(w http.ResponseWriter) error {
		e, err := newEvents(w)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer e.keepAlive(s.heartbeat, cancel)()
		err = s.Service.Subscribe(ctx, after, func(ev sandbox.Event) error { return e.send(ev.Seq, ev.Type, eventOf(ev)) })
		if err != nil && ctx.Err() == nil {
			s.problem(ctx, e, err)
		}
		return nil
	}), nil
}
