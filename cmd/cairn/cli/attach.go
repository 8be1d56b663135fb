package cli

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"cairn/api/client"
	"cairn/api/types"
)

func (a *app) attachCommand() *cobra.Command {
	var (
		noStdin bool
		keys    string
		tail    int64
	)
	c := &cobra.Command{
		Use: "attach SANDBOX [PROCESS]", Short: "Connect to a process that runs in a sandbox",
		Long: `Connect to a process that runs in a sandbox: show its output, from some time back
and then as it comes, and give it what is typed. When it ends its exit code is
passed through. Any number may be attached to one process. Without PROCESS it is
the last one that was started with a terminal and runs.

Type ctrl-p ctrl-q to leave; the process goes on. Of a process without a terminal
only the standard output is shown, and interrupting cairn leaves it.`,
		Example: "  cairn attach alice\n  cairn attach alice exec_01J00000000000000000000000",
		Args:    cobra.RangeArgs(1, 2), ValidArgsFunction: a.sandboxThen(nil),
		RunE: func(c *cobra.Command, args []string) error {
			detach, err := parseKeys(keys)
			if err != nil {
				return usagef("--detach-keys: %v", err)
			}
			p, err := a.attachable(c.Context(), args)
			if err != nil {
				return err
			}
			end, err := a.session(c.Context(), p, &types.AttachProcessParams{Tail: &tail}, !noStdin, detach)
			return a.left(end, err)
		},
	}
	f := c.Flags()
	f.BoolVar(&noStdin, "no-stdin", false, "only watch")
	f.StringVar(&keys, "detach-keys", defaultDetach, "what to type to leave; empty for nothing")
	f.Int64Var(&tail, "tail", 16<<10, "how many bytes of former output to show")
	return c
}

// attachable finds the process that attach is to connect to.
func (a *app) attachable(ctx context.Context, args []string) (types.Process, error) {
	if len(args) == 2 {
		return client.Get[types.Process](a.client.GetProcess(ctx, args[0], args[1]))
	}
	l, err := client.Get[types.ProcessList](a.client.ListProcesses(ctx, args[0]))
	if err != nil {
		return types.Process{}, err
	}
	for _, p := range l.Items { // newest first
		if p.Tty && p.State == types.ProcessStateRunning {
			return p, nil
		}
	}
	return types.Process{}, notFound("no process of " + printable(args[0]) + " that runs has a terminal")
}

// onTerminal starts a command at a terminal of its own and connects to it. When
// cairn is ended, or its terminal closed, the command is hung up, as ssh does it.
func (a *app) onTerminal(ctx context.Context, id string, r types.Exec, stdin bool, keys []byte) error {
	r.Background = new(true)
	p, err := client.Get[types.Process](a.client.Exec(ctx, id, nil, r))
	if err != nil {
		return commandError(err)
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGHUP, unix.SIGTERM)
	defer stop()
	end, err := a.session(ctx, p, nil, stdin, keys)
	if ctx.Err() != nil {
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = client.Done(a.client.SignalProcess(short, p.SandboxId, p.Id, nil, types.Signal{Signal: "SIGHUP"})) // it may have ended
		err = context.Canceled
	}
	return a.left(end, err)
}

// withTerminal makes a request one for a terminal like the user's.
func (a *app) withTerminal(r *types.Exec) {
	if r.Tty = a.terminalSize(); r.Tty == nil {
		r.Tty = &types.TerminalSize{Rows: 24, Cols: 80}
	}
	name := a.getenv("TERM")
	if name == "" {
		return
	}
	env := types.Env{}
	if r.Env != nil {
		env = *r.Env
	}
	if _, ok := env["TERM"]; !ok {
		env["TERM"] = name
	}
	r.Env = &env
}

// left turns how a session ended into an exit code.
func (a *app) left(p types.Process, err error) error {
	if errors.Is(err, errDetached) {
		fmt.Fprintf(a.Err, "\r\n[cairn: detached; to come back: cairn attach %s %s]\r\n", p.SandboxId, p.Id)
		return nil
	}
	return a.ended(p, err)
}
