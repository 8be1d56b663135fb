package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"cairn/api/types"
)

// hookFlags are the flags for the hooks of a sandbox.
type hookFlags struct {
	specs   []string
	timeout time.Duration
	ignore  bool
}

func (h *hookFlags) add(f *pflag.FlagSet) {
	f.StringArrayVar(&h.specs, "hook", nil, "EVENT=COMMAND for sh -c inside, or EVENT=URL to post to; before_checkpoint, after_restore or after_fork (repeatable)")
	f.DurationVar(&h.timeout, "hook-timeout", 0, "how long each of these hooks may take (default 10s)")
	f.BoolVar(&h.ignore, "hook-ignore", false, "go on when one of these hooks fails")
}

// hooks is nil when none is given.
func (h *hookFlags) hooks() (*types.Hooks, error) {
	if len(h.specs) == 0 {
		if h.timeout != 0 || h.ignore {
			return nil, usagef("--hook-timeout and --hook-ignore go with --hook")
		}
		return nil, nil
	}
	var list types.Hooks
	for _, spec := range h.specs {
		event, what, ok := strings.Cut(spec, "=")
		if !ok || what == "" || !types.HookEvent(event).Valid() {
			return nil, usagef("--hook %q: want EVENT=COMMAND or EVENT=URL, EVENT one of before_checkpoint, after_restore, after_fork", spec)
		}
		hook := types.Hook{Event: types.HookEvent(event)}
		if strings.HasPrefix(what, "http://") || strings.HasPrefix(what, "https://") {
			hook.Url = &what
		} else {
			hook.Command = &[]string{"sh", "-c", what}
		}
		if h.timeout != 0 {
			ms := h.timeout.Milliseconds()
			hook.TimeoutMs = &ms
		}
		if h.ignore {
			hook.OnFailure = new(types.Ignore)
		}
		list = append(list, hook)
	}
	return &list, nil
}

// hookText is a hook on one line.
func hookText(h types.Hook) string {
	what := ""
	if h.Url != nil {
		what = *h.Url
	}
	if h.Command != nil {
		what = strings.Join(*h.Command, " ")
	}
	more := ""
	if h.TimeoutMs != nil {
		more = fmt.Sprint(time.Duration(*h.TimeoutMs) * time.Millisecond)
	}
	if h.OnFailure != nil && *h.OnFailure == types.Ignore {
		more += ", failures are ignored"
	}
	return fmt.Sprintf("%s: %s (%s)", h.Event, printable(what), more)
}
