package sandbox

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// HookEvent is when a hook is run.
type HookEvent string

// The events. BeforeCheckpoint: before anything of a running sandbox is stopped for a
// checkpoint or a fork point. AfterRestore: when the sandbox runs again after a restore, or
// after a resume that brought its processes back. AfterFork: in each child.
const (
	HookBeforeCheckpoint HookEvent = "before_checkpoint"
	HookAfterRestore     HookEvent = "after_restore"
	HookAfterFork        HookEvent = "after_fork"
)

// OnFailure says what becomes of an operation whose hook fails.
type OnFailure string

// Fail fails the operation; Ignore only records it.
const (
	OnFailureFail   OnFailure = "fail"
	OnFailureIgnore OnFailure = "ignore"
)

// Hook is something to be done at an event: a command inside, as the sandbox's user, or
// a POST to an address that the operator allows. It has exactly one of the two.
type Hook struct {
	Event     HookEvent
	Command   []string
	URL       string
	Timeout   time.Duration // 0 means the default
	OnFailure OnFailure     // "" means OnFailureFail
}

// HookDue says which hooks are to be run before anything else is done with a sandbox;
// the zero value: none. It is recorded together with what they are run for, so that a
// daemon that ended in between is found out.
type HookDue struct {
	Event      HookEvent
	Checkpoint string
}

const (
	maxHooks           = 16
	maxHookURL         = 2048
	maxHookTimeout     = 10 * time.Minute
	defaultHookTimeout = 10 * time.Second
)

// checkHooks checks hooks and gives them with the defaults filled in.
func (s *Service) checkHooks(hooks []Hook) ([]Hook, error) {
	if len(hooks) > maxHooks {
		return nil, Invalid("hooks", "at most %d", maxHooks)
	}
	hooks = slices.Clone(hooks)
	for i := range hooks {
		if err := s.checkHook(&hooks[i], "hooks."+strconv.Itoa(i)); err != nil {
			return nil, err
		}
	}
	return hooks, nil
}

func (s *Service) checkHook(h *Hook, field string) error {
	switch h.Event {
	case HookBeforeCheckpoint, HookAfterRestore, HookAfterFork:
	default:
		return Invalid(field+".event", `"before_checkpoint", "after_restore" or "after_fork"`)
	}
	if (len(h.Command) > 0) == (h.URL != "") {
		return Invalid(field, "either a command or a url")
	}
	if err := checkCommand(field+".command", h.Command); err != nil {
		return err
	}
	if h.URL != "" {
		if len(h.URL) > maxHookURL {
			return Invalid(field+".url", "at most %d bytes", maxHookURL)
		}
		if err := s.o.Webhooks.Check(h.URL); err != nil {
			return &Error{Code: CodeOf(err), Field: field + ".url", Message: messageOf(err), Err: err}
		}
	}
	switch {
	case h.Timeout == 0:
		h.Timeout = defaultHookTimeout
	case h.Timeout < time.Millisecond || h.Timeout > maxHookTimeout:
		return Invalid(field+".timeout_ms", "between 1 and %d", maxHookTimeout.Milliseconds())
	}
	switch h.OnFailure {
	case "":
		h.OnFailure = OnFailureFail
	case OnFailureFail, OnFailureIgnore:
	default:
		return Invalid(field+".on_failure", `"fail" or "ignore"`)
	}
	return nil
}

// owe records in sb that the hooks of the event are due, if it has any.
func (sb *Sandbox) owe(event HookEvent, checkpoint string) {
	sb.HooksDue = HookDue{}
	if slices.ContainsFunc(sb.Config.Hooks, func(h Hook) bool { return h.Event == event }) {
		sb.HooksDue = HookDue{Event: event, Checkpoint: checkpoint}
	}
}

// notRun is what is said of hooks that a daemon did not come to run.
func (d HookDue) notRun() string {
	return fmt.Sprintf("the daemon ended before the %s hooks had been run", d.Event)
}
