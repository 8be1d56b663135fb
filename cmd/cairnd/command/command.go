// Package command is the command line of cairnd.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"cairn/daemon"
	"cairn/daemon/config"
	"cairn/sandbox"
	"cairn/sandbox/failpoint"
)

// Exit codes of cairnd.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

type flags struct {
	root, config, failpoints string
}

// Run runs cairnd with the given arguments and returns its exit code.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot() //nolint:contextcheck // cobra hands the context to the command
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(stderr, "cairnd:", err)
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitError
}

type usageError struct{ error }

func newRoot() *cobra.Command {
	var f flags
	root := &cobra.Command{
		Use:           "cairnd",
		Short:         "Run agents in sandboxes; checkpoint, restore and fork them",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       daemon.Version(),
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	p := root.PersistentFlags()
	p.StringVar(&f.root, "root", "", "keep everything below this directory; the API is then at ROOT/run/cairn.sock")
	p.StringVar(&f.config, "config", "", "configuration file (TOML)")
	serve := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon until SIGTERM",
		Long: "Run the daemon until SIGTERM. Sandboxes run on when it ends, and are found again by\n" +
			"the next one. Several daemons run side by side with different --root directories.\n\n" +
			"Exit codes: 0 after an orderly shutdown, 1 on an error, 2 for wrong usage.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd, f) },
	}
	serve.Flags().StringVar(&f.failpoints, "failpoints", "", "for tests: name=kill or name=error, comma-separated")
	if err := serve.Flags().MarkHidden("failpoints"); err != nil {
		panic(err) // the flag is defined on the line above
	}
	root.AddCommand(serve, configCommand(&f), checkCommand(&f))
	return root
}

func serve(cmd *cobra.Command, f flags) error {
	c, err := config.Load(f.config, f.root)
	if err != nil {
		return err
	}
	points, err := failpoint.Parse(f.failpoints, sandbox.Failpoints())
	if err != nil {
		return usageError{err}
	}
	return daemon.Serve(cmd.Context(), daemon.Options{Config: c, Logger: logger(c.Log, cmd.ErrOrStderr()), Failpoints: points})
}

func logger(c config.Log, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		level = slog.LevelInfo // config.Check has refused anything else
	}
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

func configCommand(f *flags) *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Check or print the configuration"}
	c.AddCommand(&cobra.Command{
		Use:   "check",
		Short: "Check a configuration file and say everything that is wrong with it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := config.Load(f.config, f.root); err != nil {
				return err
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "the configuration is valid")
			return err
		},
	}, &cobra.Command{
		Use:   "print",
		Short: "Print the configuration in force, with a comment for each key",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(f.config, f.root)
			if err != nil {
				return err
			}
			text, err := c.TOML()
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	})
	return c
}

func checkCommand(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Check that this host can run sandboxes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(f.config, f.root)
			if err != nil {
				return err
			}
			ok := true
			for _, r := range daemon.CheckHost(c) {
				mark := "ok  "
				switch {
				case r.Err != nil && r.Required:
					mark, ok = "FAIL", false
				case r.Err != nil:
					mark = "no  "
				}
				line := fmt.Sprintf("%s  %s", mark, r.What)
				if r.Err != nil {
					line += ": " + r.Err.Error()
				} else if r.Detail != "" {
					line += ": " + r.Detail
				}
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), line); err != nil {
					return err
				}
			}
			if !ok {
				return errors.New("this host cannot run sandboxes; see the lines marked FAIL")
			}
			return nil
		},
	}
}
