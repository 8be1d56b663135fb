package cli

import (
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"cairn/api/client"
	"cairn/api/types"
)

func (a *app) processesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "processes SANDBOX", Aliases: []string{"top"}, Short: "List the commands started in a sandbox",
		Example: "  cairn processes alice",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: a.sandboxThen(nil),
		RunE: func(c *cobra.Command, args []string) error {
			l, err := client.Get[types.ProcessList](a.client.ListProcesses(c.Context(), args[0]))
			if err != nil {
				return err
			}
			return a.show(l, func() error {
				var rows [][]string
				for _, p := range l.Items {
					code := "-"
					if p.State == types.ProcessStateExited {
						code = strconv.Itoa(p.ExitCode)
					}
					rows = append(rows, []string{p.Id, strconv.Itoa(p.Pid), string(p.State), code, ago(p.StartedAt), printable(strings.Join(p.Command, " "))})
				}
				return a.table("ID\tPID\tSTATE\tEXIT\tSTARTED\tCOMMAND", rows)
			})
		},
	}
}

func (a *app) logsCommand() *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use: "logs SANDBOX PROCESS", Short: "Show the output of a process",
		Long:    "Show the output of a process so far, or with --follow to its end; then its exit code is passed through.",
		Example: "  cairn logs -f alice exec_01J00000000000000000000000",
		Args:    cobra.ExactArgs(2), ValidArgsFunction: a.sandboxThen(nil),
		RunE: func(c *cobra.Command, args []string) error {
			ctx := c.Context()
			p, err := client.Get[types.Process](a.client.GetProcess(ctx, args[0], args[1]))
			if err != nil {
				return err
			}
			if follow || p.State != types.ProcessStateRunning {
				p, err = a.follow(ctx, p, nil, a.write)
				if err != nil || !follow {
					return err
				}
				return exitWith(p.ExitCode)
			}
			for _, s := range []types.Stream{types.Stdout, types.Stderr} {
				var at int64
				for {
					params := &types.GetProcessOutputParams{Stream: &s, Offset: &at}
					body, h, err := client.Body(a.client.GetProcessOutput(ctx, p.SandboxId, p.Id, params, client.Accept(byteType)))
					if err != nil {
						return err
					}
					n, err := copyTo(a, s, body)
					if err != nil {
						return err
					}
					next, err := strconv.ParseInt(h.Get("Cairn-Next-Offset"), 10, 64)
					if err != nil || n == 0 {
						break
					}
					at = next
				}
			}
			return nil
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on to the end of the process")
	return c
}

func (a *app) killCommand() *cobra.Command {
	var signal string
	c := &cobra.Command{
		Use: "kill SANDBOX PROCESS", Short: "Send a signal to a process and its group",
		Example: "  cairn kill -s SIGINT alice exec_01J00000000000000000000000",
		Args:    cobra.ExactArgs(2), ValidArgsFunction: a.sandboxThen(nil),
		RunE: func(c *cobra.Command, args []string) error {
			return client.Done(a.client.SignalProcess(c.Context(), args[0], args[1], nil, types.Signal{Signal: signal}))
		},
	}
	c.Flags().StringVarP(&signal, "signal", "s", "SIGTERM", "name or number")
	return c
}

func copyTo(a *app, s types.Stream, body io.ReadCloser) (int64, error) {
	defer body.Close()
	to := a.Out
	if s == types.Stderr {
		to = a.Err
	}
	return io.Copy(to, body)
}
