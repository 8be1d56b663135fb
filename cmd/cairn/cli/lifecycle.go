package cli

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"cairn/api/client"
	"cairn/api/types"
)

func (a *app) rmCommand() *cobra.Command {
	var checkpoint bool
	c := &cobra.Command{
		Use: "rm SANDBOX...", Short: "Delete sandboxes, or checkpoints",
		Long:    "End and delete sandboxes; their checkpoints stay. With --checkpoint, delete checkpoints.",
		Example: "  cairn rm alice bob\n  cairn rm --checkpoint good",
		Args:    cobra.MinimumNArgs(1), ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			var all error
			for _, name := range args {
				all = errors.Join(all, a.remove(c.Context(), name, checkpoint))
			}
			return all
		},
	}
	c.Flags().BoolVar(&checkpoint, "checkpoint", false, "the arguments are checkpoints")
	return c
}

func (a *app) remove(ctx context.Context, name string, checkpoint bool) error {
	if !checkpoint {
		return client.Done(a.client.DeleteSandbox(ctx, name))
	}
	id, err := a.checkpoint(ctx, name)
	if err != nil {
		return err
	}
	return client.Done(a.client.DeleteCheckpoint(ctx, id))
}

func (a *app) pauseCommand() *cobra.Command {
	return a.eachSandbox("pause", "Freeze every process of sandboxes", func(ctx context.Context, id string) (*http.Response, error) {
		return a.client.PauseSandbox(ctx, id, nil)
	})
}

func (a *app) resumeCommand() *cobra.Command {
	return a.eachSandbox("resume", "Let paused sandboxes go on; bring stopped ones back", func(ctx context.Context, id string) (*http.Response, error) {
		return a.client.ResumeSandbox(ctx, id, nil)
	})
}

func (a *app) eachSandbox(verb, short string, do func(ctx context.Context, id string) (*http.Response, error)) *cobra.Command {
	return &cobra.Command{
		Use: verb + " SANDBOX...", Short: short, Example: "  cairn " + verb + " alice",
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			var all error
			for _, name := range args {
				sb, err := client.Get[types.Sandbox](do(c.Context(), name))
				if err == nil {
					err = a.show(sb, func() error { return a.line("%s %s", printable(sb.Name), sb.State) })
				}
				all = errors.Join(all, err)
			}
			return all
		},
	}
}

func (a *app) updateCommand() *cobra.Command {
	var name, notes string
	var labels []string
	var hook hookFlags
	var noHooks bool
	c := &cobra.Command{
		Use: "update SANDBOX|CHECKPOINT", Short: "Change name, labels, hooks or notes",
		Long: `Change the name, the labels or the hooks of a sandbox, or the name, labels or notes of a
checkpoint (by its id or as @SANDBOX). The labels and hooks given replace all there are.`,
		Example: "  cairn update alice --name bob\n  cairn update @bob --name good --notes 'all tests pass' -l stage=1",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			l, err := pairs("--label", labels)
			if err != nil {
				return err
			}
			named := optionalFlag(c, "name", name)
			if strings.HasPrefix(args[0], "@") || checkpointID.MatchString(args[0]) {
				id, err := a.checkpoint(c.Context(), args[0])
				if err != nil {
					return err
				}
				u := types.UpdateCheckpoint{Name: named, Notes: optionalFlag(c, "notes", notes), Labels: given[types.Labels](l)}
				k, err := client.Get[types.Checkpoint](a.client.UpdateCheckpoint(c.Context(), id, u))
				if err != nil {
					return err
				}
				return a.show(k, func() error { return a.line("%s", k.Id) })
			}
			if c.Flags().Changed("notes") {
				return usagef("a sandbox has no notes")
			}
			h, err := hook.hooks()
			if err != nil {
				return err
			}
			if noHooks {
				h = &types.Hooks{}
			}
			sb, err := client.Get[types.Sandbox](a.client.UpdateSandbox(c.Context(), args[0], types.UpdateSandbox{Name: named, Labels: given[types.Labels](l), Hooks: h}))
			if err != nil {
				return err
			}
			return a.show(sb, func() error { return a.line("%s", printable(sb.Name)) })
		},
	}
	c.Flags().StringVar(&name, "name", "", "new name")
	c.Flags().StringVar(&notes, "notes", "", "new notes of a checkpoint")
	hook.add(c.Flags())
	c.Flags().BoolVar(&noHooks, "no-hooks", false, "the sandbox is to have no hooks")
	c.MarkFlagsMutuallyExclusive("hook", "no-hooks")
	c.Flags().StringArrayVarP(&labels, "label", "l", nil, "label KEY=VALUE (repeatable)")
	return c
}

// optionalFlag is nil unless the flag was given.
func optionalFlag(c *cobra.Command, name, value string) *string {
	if !c.Flags().Changed(name) {
		return nil
	}
	return &value
}
