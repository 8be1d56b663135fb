package cli

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cairn/api/client"
	"cairn/api/types"
)

func (a *app) checkpointCommand() *cobra.Command {
	var name, notes, processes string
	var labels []string
	var durable, stop bool
	c := &cobra.Command{
		Use: "checkpoint SANDBOX", Short: "Take a checkpoint of a sandbox",
		Long: `Take a checkpoint and print its id. The processes that run are part of it, if there
are any and they can be; --processes=include fails where they cannot, exclude leaves
them out. When only files are taken and nothing has changed since the head, the head is
printed and no new checkpoint is taken. With --stop the sandbox is stopped afterwards;
"cairn resume" brings it back with its processes.`,
		Example: "  cairn checkpoint alice --name good --durable\n  cairn checkpoint alice --processes=include --stop",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: a.sandboxThen(nil),
		RunE: func(c *cobra.Command, args []string) error {
			l, err := pairs("--label", labels)
			if err != nil {
				return err
			}
			r := types.CreateCheckpoint{Name: set(name), Notes: set(notes), Labels: given[types.Labels](l), Processes: set(types.Processes(processes))}
			if durable {
				r.Wait = new(types.CreateCheckpointWaitDurable)
			}
			r.Stop = set(stop)
			k, err := client.Get[types.Checkpoint](a.client.CreateCheckpoint(c.Context(), args[0], nil, r))
			if err != nil {
				return err
			}
			return a.show(k, func() error {
				what := fmt.Sprintf("%s, %s; frozen %.2f ms of %.2f ms", k.Method, k.Durability, k.Timings.FreezeMs, k.Timings.TotalMs)
				if k.Skipped {
					what = "nothing had changed"
				}
				if k.Processes {
					what = "with processes, " + what
				} else if k.Reason != "" {
					what += "; files only: " + printable(k.Reason)
				}
				fmt.Fprintf(a.Err, "%s (%s)\n", printable(k.Sandbox), what)
				return a.line("%s", k.Id)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&name, "name", "", "name of the checkpoint")
	f.StringVar(&notes, "notes", "", "notes kept with it")
	f.StringArrayVarP(&labels, "label", "l", nil, "label KEY=VALUE (repeatable)")
	processesFlag(f, &processes)
	f.BoolVar(&stop, "stop", false, "leave the sandbox stopped")
	f.BoolVar(&durable, "durable", false, "wait until it survives a crash of the host")
	return c
}

// processesFlag adds the flag that says what to do about running processes.
func processesFlag(f *pflag.FlagSet, to *string) {
	f.StringVar(to, "processes", "", "auto, include or exclude")
}

func (a *app) restoreCommand() *cobra.Command {
	var paths []string
	var processes string
	var verify bool
	c := &cobra.Command{
		Use: "restore SANDBOX CHECKPOINT", Short: "Put a sandbox back to a checkpoint, in place",
		Long: `Put a sandbox back to a checkpoint. Running processes are ended; those of the checkpoint
go on, if it has them. The files that were there are kept as a checkpoint of their own,
whose id is printed, unless nothing had changed.
With --path only those files and directories are put back, and processes go on.`,
		Example: "  cairn restore alice good\n  cairn restore alice good --path /app/src --path /etc/hosts",
		Args:    cobra.ExactArgs(2), ValidArgsFunction: a.sandboxThen(a.completeCheckpoints),
		RunE: func(c *cobra.Command, args []string) error {
			id, err := a.checkpoint(c.Context(), args[1])
			if err != nil {
				return err
			}
			r := types.Restore{Checkpoint: id, Processes: set(types.Processes(processes)), Verify: set(verify)}
			if len(paths) > 0 {
				r.Paths = &paths
			}
			res, err := client.Get[types.RestoredSandbox](a.client.RestoreSandbox(c.Context(), args[0], nil, r))
			if err != nil {
				return err
			}
			return a.show(res, func() error {
				what := ""
				if res.Processes {
					what = " with its processes"
				}
				fmt.Fprintf(a.Err, "%s restored%s in %.2f ms\n", printable(res.Name), what, res.Timings.TotalMs)
				if res.Undo == "" {
					return nil
				}
				return a.line("%s", res.Undo)
			})
		},
	}
	processesFlag(c.Flags(), &processes)
	c.Flags().StringArrayVar(&paths, "path", nil, "put back only this path (repeatable)")
	c.Flags().BoolVar(&verify, "verify", false, "check every byte of the checkpoint first")
	return c
}

func (a *app) forkCommand() *cobra.Command {
	var cfg config
	var count int
	var processes string
	var fromSandbox, verify bool
	c := &cobra.Command{
		Use: "fork CHECKPOINT", Short: "Start new sandboxes from a checkpoint",
		Long: `Start new sandboxes from a checkpoint and print their names. With --now the
argument is a sandbox, which is forked as it is. The processes of the checkpoint run on
in each child, if it has them. With -n above 1 names get -1, -2
and so on appended. Fails when a child could not be made; the others stay.`,
		Example: "  cairn fork good -n 3 --name try\n  cairn fork --now alice --name bob -e SEED=2",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: a.completeCheckpoints,
		RunE: func(c *cobra.Command, args []string) error {
			h, err := cfg.hook.hooks()
			if err != nil {
				return err
			}
			r := types.Fork{Count: &count, Hooks: h, Name: set(cfg.name), Network: set(types.Network(cfg.network)), Resources: cfg.resources(), Processes: set(types.Processes(processes)), Verify: set(verify)}
			if r.Env, r.Labels, err = cfg.maps(); err != nil {
				return err
			}
			var res types.ForkResults
			if fromSandbox {
				res, err = client.Get[types.ForkResults](a.client.ForkSandbox(c.Context(), args[0], nil, r))
			} else {
				var id string
				if id, err = a.checkpoint(c.Context(), args[0]); err == nil {
					res, err = client.Get[types.ForkResults](a.client.ForkCheckpoint(c.Context(), id, nil, r))
				}
			}
			if err != nil {
				return err
			}
			if err := a.show(res, func() error { return a.children(res) }); err != nil {
				return err
			}
			for _, i := range res.Items {
				if i.Error != nil {
					return &client.Error{Problem: *i.Error}
				}
			}
			return nil
		},
	}
	f := c.Flags()
	f.IntVarP(&count, "count", "n", 1, "how many")
	f.BoolVar(&fromSandbox, "now", false, "the argument is a sandbox, to be forked as it is")
	processesFlag(f, &processes)
	f.BoolVar(&verify, "verify", false, "check every byte of the checkpoint first")
	cfg.common(f)
	return c
}

func (a *app) children(res types.ForkResults) error {
	for n, i := range res.Items {
		if i.Sandbox == nil {
			fmt.Fprintf(a.Err, "child %d was not made\n", n+1)
			continue
		}
		if err := a.line("%s", printable(i.Sandbox.Name)); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) verifyCommand() *cobra.Command {
	var trial bool
	c := &cobra.Command{
		Use: "verify CHECKPOINT", Short: "Compare every file of a checkpoint with what was recorded",
		Long: `Compare every file of a checkpoint with what was recorded. With --trial it is then
restored, with its processes if it has them, into a container that has no network and
is thrown away; it fails when that fails.`,
		Example: "  cairn verify good\n  cairn verify --trial good",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: a.completeCheckpoints,
		RunE: func(c *cobra.Command, args []string) error {
			id, err := a.checkpoint(c.Context(), args[0])
			if err != nil {
				return err
			}
			a.progress("verifying %s ...", id)
			k, err := client.Get[types.Checkpoint](a.client.VerifyCheckpoint(c.Context(), id, nil, types.VerifyCheckpoint{Trial: set(trial)}))
			a.progress("")
			if err != nil {
				return err
			}
			if err := a.show(k, func() error { return a.line("%s is intact, %s", k.Id, orDash(k.Digest)) }); err != nil {
				return err
			}
			return a.tried(k.Trial)
		},
	}
	c.Flags().BoolVar(&trial, "trial", false, "restore it into a throwaway container, too")
	return c
}

// tried says how a trial restore went; one that failed is an error.
func (a *app) tried(t *types.Trial) error {
	switch {
	case t == nil:
		return nil
	case !t.Ok:
		why := ""
		if t.Error != nil {
			why = *t.Error
		}
		return fmt.Errorf("the trial restore failed: %s", printable(why))
	}
	fmt.Fprintf(a.Err, "restored on trial in %.2f ms; %d processes ran\n", t.DurationMs, t.Processes)
	return nil
}
