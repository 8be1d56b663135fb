package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"cairn/api/client"
	"cairn/api/types"
)

// Exit codes, as the package comment lists them.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitConflict    = 4
	exitOwnFailure  = 125
	exitNotRunnable = 126
	exitNoCommand   = 127
	exitInterrupted = 130
)

// Streams are what a command reads and writes.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// app is what the commands share.
type app struct {
	Streams
	getenv func(string) string
	opts   client.Options
	json   bool
	client *client.Client
	ran    bool // a command's own code was reached: errors before it are wrong usage
}

// exitError ends the program with a code; err is printed unless it is nil.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return "exit " + strconv.Itoa(e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// Main runs one command line and returns the exit code.
func Main(ctx context.Context, args []string, s Streams, getenv func(string) string) int {
	a := &app{Streams: s, getenv: getenv}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	err := root.ExecuteContext(ctx)
	if a.client != nil {
		client.Close(a.client)
	}
	return a.exitCode(ctx, err)
}

func (a *app) exitCode(ctx context.Context, err error) int {
	if err == nil {
		return 0
	}
	var e *exitError
	var code int
	switch isExit := errors.As(err, &e); {
	case isExit:
		code = e.code
		if e.err == nil {
			return code
		}
	case !a.ran:
		code = exitUsage
	case ctx.Err() != nil:
		return exitInterrupted
	default:
		code = codeFor(err)
	}
	fmt.Fprintln(a.Err, "cairn:", err)
	switch {
	case code == exitUsage:
		fmt.Fprintln(a.Err, "Try: cairn --help, cairn COMMAND --help")
	case client.IsUnreachable(err):
		fmt.Fprintln(a.Err, "Is cairnd running? --socket and --host say where it listens.")
	}
	return code
}

// codeFor is the exit code for what the daemon refused.
func codeFor(err error) int {
	switch client.CodeOf(err) {
	case types.NotFound:
		return exitNotFound
	case types.Conflict, types.Busy, types.InUse, types.ImageMismatch, types.IdempotencyInProgress:
		return exitConflict
	default:
		return exitFailure
	}
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "cairn",
		Short: "Run agents in sandboxes; checkpoint, restore and fork them",
		Long: `Run agents in sandboxes; checkpoint, restore and fork them.

A SANDBOX is named by its name or id. A CHECKPOINT is named by its id, by a name
that only one has, or by @SANDBOX for the head of that sandbox.

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 not found, 4 conflict or busy,
130 interrupted. run and exec pass the command's own code through; there, 125 is
a failure of Cairn, 126 a command that cannot be run, 127 one that does not exist.`,
		Example: `  cairn run --name alice debian
  cairn exec alice -- sh -c 'echo hello > /root/file'
  cairn checkpoint alice --name good
  cairn restore alice good
  cairn fork good -n 3 --name try
  cairn log`,
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			a.ran = true
			return a.connect()
		},
	}
	f := root.PersistentFlags()
	f.StringVar(&a.opts.Socket, "socket", "", "Unix socket of the daemon (default "+client.DefaultSocket+")")
	f.StringVar(&a.opts.Host, "host", "", "daemon to talk to: unix:///path, host:port or https://host:port (or CAIRN_HOST)")
	f.StringVar(&a.opts.Token, "token", "", "token for a TCP host (or, better, CAIRN_TOKEN)")
	f.BoolVar(&a.json, "json", false, "answer with JSON, as the API gives it")
	root.AddCommand(a.commands()...)
	return root
}

func (a *app) connect() error {
	if a.client != nil {
		return nil
	}
	o := a.opts
	if o.Host == "" && o.Socket == "" {
		o.Host = a.getenv("CAIRN_HOST")
	}
	if o.Token == "" {
		o.Token = a.getenv("CAIRN_TOKEN")
	}
	c, err := client.Dial(o)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	a.client = c
	return nil
}

// show prints v as JSON when that is wanted, else lets people print it.
func (a *app) show(v any, people func() error) error {
	if !a.json {
		return people()
	}
	enc := json.NewEncoder(a.Out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// progress says on a terminal what is going on, over the former line.
func (a *app) progress(format string, args ...any) {
	if f, ok := a.Err.(*os.File); ok && isatty.IsTerminal(f.Fd()) && !a.json {
		fmt.Fprintf(f, "\r\x1b[K"+format, args...)
	}
}
