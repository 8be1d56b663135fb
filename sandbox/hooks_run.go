package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// hookGrace is how long a hook's command, killed at its time, may take to end.
const hookGrace = 10 * time.Second

// hookRun is one run of one hook.
type hookRun struct {
	sb         Sandbox
	hook       Hook
	number     int // of the hook among the sandbox's, from 1
	checkpoint string
	operation  string // id of this run
}

// hookCall is the document that is posted to a webhook.
type hookCall struct {
	Event      HookEvent `json:"event"`
	SandboxID  string    `json:"sandbox_id"`
	Sandbox    string    `json:"sandbox"`
	Checkpoint string    `json:"checkpoint"`
	Generation int64     `json:"generation"`
	Time       time.Time `json:"time"`
	Operation  string    `json:"operation"`
}

// runHooks runs the sandbox's hooks of an event, in their order, under its lock. The
// first that fails and must not is CodeHookFailed, and the last that is run.
func (s *Service) runHooks(ctx context.Context, sb Sandbox, event HookEvent, checkpoint string) error {
	for i, h := range sb.Config.Hooks {
		if h.Event != event {
			continue
		}
		r := hookRun{sb: sb, hook: h, number: i + 1, checkpoint: checkpoint, operation: s.o.NewID("hook")}
		begin := time.Now()
		why, data := s.runHook(ctx, r)
		if s.background.Err() != nil {
			return Wrap(errClosed, CodeUnavailable, "the daemon is stopping")
		}
		s.recordHook(ctx, r, why, data, time.Since(begin))
		switch cause := context.Cause(ctx); {
		case errors.Is(cause, context.DeadlineExceeded):
			return Wrap(cause, CodeTimeout, "the time of the request ended during its hooks")
		case cause != nil:
			return Wrap(cause, CodeCancelled, "the caller went away during the hooks")
		case why != "" && h.OnFailure == OnFailureFail:
			return Errorf(CodeHookFailed, "hook %d (%s, %s) failed: %s", r.number, event, r.what(), why)
		}
	}
	return nil
}

// what names the hook for people; of an address without what may be secret in it.
func (r hookRun) what() string {
	if r.hook.URL == "" {
		return quote(r.hook.Command[0])
	}
	address, _, _ := strings.Cut(r.hook.URL, "?")
	return address
}

// runHook runs one, and says why it failed ("" when it did not).
func (s *Service) runHook(ctx context.Context, r hookRun) (why string, data map[string]any) {
	if r.hook.URL != "" {
		return s.callHook(ctx, r), map[string]any{}
	}
	p, err := s.startHook(ctx, r)
	if err != nil {
		return messageOf(err), map[string]any{}
	}
	proc, err := s.awaitHook(ctx, p, r.hook.Timeout)
	data = map[string]any{"process": proc.ID}
	if err != nil {
		return messageOf(err), data
	}
	data["exit_code"] = proc.ExitCode
	switch {
	case proc.State != ProcessExited:
		why = "its end was not seen"
	case proc.TimedOut:
		why = fmt.Sprintf("it did not end within %v and was killed", r.hook.Timeout)
	case proc.Truncated:
		why = "it printed more than a command may and was killed"
	case proc.ExitCode != 0:
		why = fmt.Sprintf("it ended with exit code %d", proc.ExitCode)
	}
	g := p.container.Guest()
	if why != "" {
		if said := lastWords(g, proc.ID); said != "" {
			why += ", having printed " + said
		}
	}
	if err := g.Forget(ctx, proc.ID); err != nil {
		s.log.Debug("cannot remove the output of a hook", "process", proc.ID, "err", err)
	}
	return why, data
}

func (s *Service) startHook(ctx context.Context, r hookRun) (*liveProcess, error) {
	c, err := s.container(r.sb)
	if err != nil {
		return nil, err
	}
	img, err := s.imageOf(ctx, r.sb.ImageID)
	if err != nil {
		return nil, err
	}
	return s.startProcess(ctx, r.sb, img, c, ExecRequest{
		Command: r.hook.Command, Timeout: r.hook.Timeout, hook: r.hook.Event,
		Env: map[string]string{
			"CAIRN_EVENT": string(r.hook.Event), "CAIRN_CHECKPOINT": r.checkpoint,
			"CAIRN_GENERATION": strconv.FormatInt(r.sb.Generation, 10),
		},
	}, false)
}

// awaitHook returns when the hook's command has ended and that is recorded. The wait for
// the process kills it at its time; here it is killed when ctx ends.
func (s *Service) awaitHook(ctx context.Context, p *liveProcess, limit time.Duration) (Process, error) {
	tooLong := time.NewTimer(limit + hookGrace)
	defer tooLong.Stop()
	stop := ctx.Done()
	for {
		select {
		case <-p.ended:
			return p.get(), nil
		case <-stop:
			s.abandon(ctx, p.get())
			tooLong.Reset(hookGrace)
			stop = nil
		case <-tooLong.C:
			return p.get(), Errorf(CodeTimeout, "it could not be ended")
		case <-s.background.Done():
			return p.get(), errClosed
		}
	}
}

// lastWords quotes the end of what a process printed, of its errors if there are any.
// It is the sandbox's word: nothing in it reaches a terminal as it is.
func lastWords(g Guest, id string) string {
	const most = 512
	for _, stream := range []Stream{Stderr, Stdout} {
		start, end, err := g.OutputRange(id, stream)
		if err != nil || end == start {
			continue
		}
		out, err := g.Output(id, stream, max(start, end-most), most)
		if said := strings.TrimSpace(string(out.Data)); err == nil && said != "" {
			return strconv.QuoteToGraphic(said)
		}
	}
	return ""
}

// callHook posts to a webhook.
func (s *Service) callHook(ctx context.Context, r hookRun) (why string) {
	body, err := json.Marshal(hookCall{
		Event: r.hook.Event, SandboxID: r.sb.ID, Sandbox: r.sb.Name, Checkpoint: r.checkpoint,
		Generation: r.sb.Generation, Time: s.o.Now(), Operation: r.operation,
	})
	if err != nil {
		return messageOf(err)
	}
	ctx, cancel := context.WithTimeout(ctx, r.hook.Timeout)
	defer cancel()
	err = s.o.Webhooks.Post(ctx, r.hook.URL, r.operation, body)
	switch {
	case err == nil:
		return ""
	case ctx.Err() != nil:
		return fmt.Sprintf("it did not answer within %v", r.hook.Timeout)
	}
	return messageOf(err)
}

// recordHook tells observers how a hook ended.
func (s *Service) recordHook(ctx context.Context, r hookRun, why string, data map[string]any, took time.Duration) {
	ctx, cancel := outlive(ctx)
	defer cancel()
	kind := "hook.succeeded"
	if why != "" {
		kind, data["error"] = "hook.failed", why
	}
	data["event"], data["hook"], data["checkpoint"] = string(r.hook.Event), r.number, r.checkpoint
	data["duration_ms"] = milliseconds(took)
	err := s.update(ctx, func(tx Tx) error {
		_, err := tx.AppendEvent(Event{Time: s.o.Now(), Type: kind, Sandbox: r.sb.ID, Subject: r.sb.ID, Operation: r.operation, Data: data})
		return err
	})
	if err != nil {
		s.log.Error("cannot record an event", "err", err)
	}
	if why != "" {
		s.log.Info("a hook failed", "sandbox", r.sb.ID, "event", r.hook.Event, "hook", r.number, "why", why)
	}
}

// runDue runs the hooks that a running sandbox is due, and records that. They are not cut
// short when the caller goes away: what they are run for has happened.
func (s *Service) runDue(ctx context.Context, sb *Sandbox) error {
	due := sb.HooksDue
	if due.Event == "" {
		return nil
	}
	ctx, cancel := s.outliveCaller(ctx)
	defer cancel()
	failed := s.runHooks(ctx, *sb, due.Event, due.Checkpoint)
	if s.background.Err() != nil {
		return failed // the next daemon says that they were not run
	}
	last, done := outlive(ctx)
	defer done()
	err := s.update(last, func(tx Tx) error {
		now, err := tx.Sandbox(sb.ID)
		if err != nil {
			return err
		}
		now.HooksDue = HookDue{}
		*sb = now
		return tx.PutSandbox(now)
	})
	return errors.Join(failed, err)
}

// outliveCaller gives a context that ends with the daemon, or when the time of ctx does,
// but not because the caller went away.
func (s *Service) outliveCaller(ctx context.Context) (context.Context, context.CancelFunc) {
	lasting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(s.background, func() { cancel(errClosed) })
	end := func() { stop(); cancel(nil) }
	if at, ok := ctx.Deadline(); ok {
		timed, cancelTimed := context.WithDeadline(lasting, at)
		return timed, func() { cancelTimed(); end() }
	}
	return lasting, end
}

// reportDue says of a sandbox that runs that its hooks were not: whether the one that was
// under way when the daemon ended did its work is not known, and none is run twice.
func (s *Service) reportDue(ctx context.Context, sb Sandbox) error {
	due := sb.HooksDue
	if due.Event == "" {
		return nil
	}
	sb.HooksDue, sb.Reason = HookDue{}, due.notRun()
	return s.putSandbox(ctx, &sb, "hook.failed", map[string]any{
		"event": string(due.Event), "checkpoint": due.Checkpoint, "error": sb.Reason,
	})
}

// messageOf is what is told to people of err.
func messageOf(err error) string {
	var e *Error
	if errors.As(err, &e) && e.Code != CodeInternal {
		return e.Message
	}
	return "an unexpected failure, which is in the daemon's log"
}
