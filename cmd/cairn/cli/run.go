package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cairn/api/client"
	"cairn/api/types"
)

// config is what one may choose about a new sandbox.
type config struct {
	name, cwd, user, network string
	env, labels, mounts      []string
	hook                     hookFlags
	main                     bool
	cpus                     float64
	memory, pids, disk       int64
}

// common adds the flags that run and fork share.
func (c *config) common(f *pflag.FlagSet) {
	f.StringVar(&c.name, "name", "", "name of the sandbox")
	f.StringArrayVarP(&c.env, "env", "e", nil, "environment variable KEY=VALUE (repeatable)")
	f.StringArrayVarP(&c.labels, "label", "l", nil, "label KEY=VALUE (repeatable)")
	f.StringVar(&c.network, "network", "", "none or egress")
	f.Float64Var(&c.cpus, "cpus", 0, "limit of CPU cores")
	f.Int64Var(&c.memory, "memory", 0, "limit of memory in bytes")
	f.Int64Var(&c.pids, "pids", 0, "limit of processes")
	c.hook.add(f)
	f.Int64Var(&c.disk, "disk", 0, "limit of what it may write, in bytes")
}

func (c *config) resources() *types.Resources {
	if c.cpus == 0 && c.memory == 0 && c.pids == 0 && c.disk == 0 {
		return nil
	}
	return &types.Resources{Cpus: set(c.cpus), MemoryBytes: set(c.memory), Pids: set(c.pids), DiskBytes: set(c.disk)}
}

// maps reads the environment and the labels.
func (c *config) maps() (env *types.Env, labels *types.Labels, err error) {
	e, err := pairs("--env", c.env)
	if err != nil {
		return nil, nil, err
	}
	l, err := pairs("--label", c.labels)
	if err != nil {
		return nil, nil, err
	}
	return given[types.Env](e), given[types.Labels](l), nil
}

func (c *config) create(image string) (r types.CreateSandbox, err error) {
	r = types.CreateSandbox{
		Image: image, Name: set(c.name), Cwd: set(c.cwd), User: set(c.user), Network: set(types.Network(c.network)), Resources: c.resources(),
	}
	if r.Env, r.Labels, err = c.maps(); err != nil {
		return r, err
	}
	var mounts []types.Mount
	for _, m := range c.mounts {
		src, dst, ok := strings.Cut(m, ":")
		if !ok {
			return r, usagef("--mount %q: want SOURCE:TARGET", m)
		}
		mounts = append(mounts, types.Mount{Source: src, Target: dst})
	}
	if mounts != nil {
		r.Mounts = &mounts
	}
	r.Hooks, err = c.hook.hooks()
	return r, err
}

func (a *app) runCommand() *cobra.Command {
	var cfg config
	var remove, stdin, tty bool
	c := &cobra.Command{
		Use:   "run IMAGE [COMMAND ARG...]",
		Short: "Create a sandbox, and run a command in it",
		Long: `Create a sandbox from an image. With a command, run it and pass its exit code
through; the sandbox stays, unless --rm is given. -i and -t are as with exec. With --main the command becomes
the sandbox's main process: it is started now and again after each restore.`,
		Example: `  cairn run --name alice debian
  cairn run --rm debian sh -c 'cat /etc/os-release'
  cairn run --rm -it debian bash
  cairn run --main --name web debian python3 -m http.server`,
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.completeImages,
		RunE: func(c *cobra.Command, args []string) error {
			req, err := cfg.create(args[0])
			if err != nil {
				return err
			}
			command := args[1:]
			if len(command) > 0 && command[0] == "--" {
				command = command[1:]
			}
			switch {
			case cfg.main && len(command) == 0:
				return usagef("--main needs a command")
			case (stdin || tty) && (cfg.main || len(command) == 0):
				return usagef("-i and -t need a command, and go without --main")
			case tty && a.json:
				return usagef("-t and --json don't go together")
			case remove && (cfg.main || len(command) == 0):
				return usagef("--rm needs a command, and goes without --main")
			case cfg.main:
				req.Command, command = &command, nil
			}
			keys := defaultDetach
			if remove {
				keys = "" // there would be nothing to come back to
			}
			detach, err := parseKeys(keys)
			if err != nil {
				return err
			}
			ctx := c.Context()
			sb, err := client.Get[types.Sandbox](a.client.CreateSandbox(ctx, nil, req))
			switch {
			case err != nil && len(command) > 0:
				return commandError(err)
			case err != nil:
				return err
			case len(command) == 0:
				return a.show(sb, func() error { return a.line("%s", sb.Name) })
			case remove:
				defer a.removeAfter(ctx, sb.Id)
			}
			r := types.Exec{Command: command}
			switch {
			case tty:
				a.withTerminal(&r)
				return a.onTerminal(ctx, sb.Id, r, stdin, detach)
			case stdin:
				return a.withStdin(ctx, sb.Id, r)
			}
			return a.foreground(ctx, sb.Id, r)
		},
	}
	f := c.Flags()
	f.SetInterspersed(false)
	f.BoolVarP(&stdin, "interactive", "i", false, "give the command this one's standard input")
	f.BoolVarP(&tty, "tty", "t", false, "give the command a terminal")
	f.BoolVar(&remove, "rm", false, "delete the sandbox when the command has ended")
	f.BoolVar(&cfg.main, "main", false, "make the command the sandbox's main process")
	f.StringVarP(&cfg.cwd, "workdir", "w", "", "working directory")
	f.StringVarP(&cfg.user, "user", "u", "", "user, as name, uid, name:group or uid:gid")
	f.StringArrayVar(&cfg.mounts, "mount", nil, "host path to see read-only, SOURCE:TARGET (repeatable)")
	cfg.common(f)
	return c
}

// removeAfter deletes a sandbox also when the command was interrupted.
func (a *app) removeAfter(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := client.Done(a.client.DeleteSandbox(ctx, id)); err != nil {
		fmt.Fprintf(a.Err, "cairn: cannot delete %s: %v\n", id, err)
	}
}
