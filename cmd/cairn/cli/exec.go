package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"cairn/api/client"
	"cairn/api/types"
)

func (a *app) execCommand() *cobra.Command {
	var (
		stdin, tty, background bool
		env                    []string
		cwd, user, keys        string
		timeout                time.Duration
	)
	c := &cobra.Command{
		Use:   "exec SANDBOX COMMAND [ARG...]",
		Short: "Run a command in a sandbox",
		Long: `Run a command in a sandbox, show its output as it comes, and pass its exit code
through. When cairn is interrupted the command is killed, unless it runs in the
background.

With -t the command has a terminal, with -it one that is connected to this one, as
ssh does it: type ctrl-p ctrl-q to leave the command running, and cairn attach to
come back.`,
		Example: `  cairn exec alice ls -l /
  cairn exec -w /app -e LANG=C alice -- make test
  tar c . | cairn exec -i alice tar x -C /app
  cairn exec -d alice python3 -m http.server
  cairn exec -it alice bash`,
		Args: cobra.MinimumNArgs(2), ValidArgsFunction: a.sandboxThen(nil),
		RunE: func(c *cobra.Command, args []string) error {
			vars, err := pairs("--env", env)
			if err != nil {
				return err
			}
			command := args[1:]
			if command[0] == "--" {
				command = command[1:]
			}
			if len(command) == 0 {
				return usagef("a command is needed")
			}
			r := types.Exec{Command: command, Cwd: set(cwd), User: set(user), Env: given[types.Env](vars), TimeoutMs: set(timeout.Milliseconds())}
			detach, err := parseKeys(keys)
			if err != nil {
				return usagef("--detach-keys: %v", err)
			}
			if tty {
				a.withTerminal(&r)
			}
			switch {
			case background && stdin:
				return usagef("-d and -i don't go together")
			case tty && a.json && !background:
				return usagef("-t and --json don't go together")
			case background:
				r.Background = new(true)
				p, err := client.Get[types.Process](a.client.Exec(c.Context(), args[0], nil, r))
				if err != nil {
					return commandError(err)
				}
				return a.show(p, func() error { return a.line("%s", p.Id) })
			case tty:
				return a.onTerminal(c.Context(), args[0], r, stdin, detach)
			case stdin:
				return a.withStdin(c.Context(), args[0], r)
			}
			return a.foreground(c.Context(), args[0], r)
		},
	}
	f := c.Flags()
	f.SetInterspersed(false)
	f.BoolVarP(&stdin, "stdin", "i", false, "give it this command's standard input")
	f.BoolVarP(&tty, "tty", "t", false, "give it a terminal")
	f.StringVar(&keys, "detach-keys", defaultDetach, "with -t: what to type to leave it running; empty for nothing")
	f.BoolVarP(&background, "detach", "d", false, "start it in the background and print its id")
	f.StringArrayVarP(&env, "env", "e", nil, "environment variable KEY=VALUE (repeatable)")
	f.StringVarP(&cwd, "workdir", "w", "", "working directory")
	f.StringVarP(&user, "user", "u", "", "user, as name, uid, name:group or uid:gid")
	f.DurationVar(&timeout, "timeout", 0, "kill it after this time, such as 90s")
	return c
}

// foreground runs a command to its end. With --json its output is in the answer.
func (a *app) foreground(ctx context.Context, id string, r types.Exec) error {
	if !a.json {
		p, err := a.client.ExecStream(ctx, id, r, nil, a.write)
		return a.ended(p, err)
	}
	res, err := client.Get[types.ExecResult](a.client.Exec(ctx, id, nil, r))
	if err != nil {
		return commandError(err)
	}
	if err := a.show(res, nil); err != nil {
		return err
	}
	return exitWith(res.ExitCode)
}

// withStdin runs a command that reads what this program is given.
func (a *app) withStdin(ctx context.Context, id string, r types.Exec) error {
	r.Background, r.OpenStdin = new(true), new(true)
	p, err := client.Get[types.Process](a.client.Exec(ctx, id, nil, r))
	if err != nil {
		return commandError(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go a.pump(ctx, p) // ends with the input, the process, or this program
	var out, errs bytes.Buffer
	write := a.write
	if a.json {
		write = func(s types.Stream, b []byte) error {
			to := &out
			if s == types.Stderr {
				to = &errs
			}
			_, err := to.Write(b)
			return err
		}
	}
	end, err := a.follow(ctx, p, nil, write)
	if err != nil { // nobody listens any more; it may have ended
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = client.Done(a.client.SignalProcess(short, p.SandboxId, p.Id, nil, types.Signal{Signal: "SIGKILL"}))
		return a.ended(p, err)
	}
	if !a.json {
		return a.ended(end, nil)
	}
	res := types.ExecResult{
		Id: p.Id, ExitCode: end.ExitCode, Signal: end.Signal, Stdout: out.String(), Stderr: errs.String(), TimedOut: end.TimedOut, Truncated: end.Truncated,
	}
	if end.ExitedAt != nil {
		res.DurationMs = float64(end.ExitedAt.Sub(end.StartedAt)) / float64(time.Millisecond)
	}
	if err := a.show(res, nil); err != nil {
		return err
	}
	return exitWith(res.ExitCode)
}

// follow gives the output of a process, of one stream or of both, to its end.
func (a *app) follow(ctx context.Context, p types.Process, params *types.GetProcessOutputParams, write func(types.Stream, []byte) error) (types.Process, error) {
	e, err := client.OpenStream(a.client.GetProcessOutput(ctx, p.SandboxId, p.Id, params, client.Accept(client.EventStream)))
	if err != nil {
		return p, err
	}
	defer e.Close()
	return client.Follow(e, nil, write)
}

// pump gives a process what this program reads.
func (a *app) pump(ctx context.Context, p types.Process) {
	buf := make([]byte, 64<<10)
	for {
		n, err := a.In.Read(buf)
		last := err != nil
		if n == 0 && !last {
			continue
		}
		params := &types.WriteStdinParams{Close: &last}
		werr := client.Done(a.client.WriteStdinWithBody(ctx, p.SandboxId, p.Id, params, "application/octet-stream", bytes.NewReader(buf[:n])))
		if werr != nil {
			if code := codeFor(werr); ctx.Err() == nil && code != exitConflict && code != exitNotFound {
				fmt.Fprintln(a.Err, "cairn: standard input:", werr)
			}
			return
		}
		if last {
			if !errors.Is(err, io.EOF) {
				fmt.Fprintln(a.Err, "cairn: standard input:", err)
			}
			return
		}
	}
}

func (a *app) write(s types.Stream, data []byte) error {
	to := a.Out
	if s == types.Stderr {
		to = a.Err
	}
	_, err := to.Write(data)
	return err
}

// ended turns how a command ended into an exit code.
func (a *app) ended(p types.Process, err error) error {
	switch {
	case err != nil:
		return commandError(err)
	case p.TimedOut:
		fmt.Fprintln(a.Err, "cairn: the command was killed: its time was up")
	case p.Truncated:
		fmt.Fprintln(a.Err, "cairn: the command was killed: it printed too much")
	case p.State == types.ProcessStateLost:
		return &exitError{exitOwnFailure, errors.New("how the command ended is not known")}
	}
	return exitWith(p.ExitCode)
}

func exitWith(code int) error {
	if code == 0 {
		return nil
	}
	return &exitError{code: code}
}

// commandError is why a command was not run, in the exit codes of run and exec.
func commandError(err error) error {
	code := exitOwnFailure
	switch client.CodeOf(err) {
	case types.CommandNotFound:
		code = exitNoCommand
	case types.CommandNotRunnable:
		code = exitNotRunnable
	default:
	}
	if errors.Is(err, context.Canceled) {
		code = exitInterrupted
	}
	return &exitError{code, err}
}
