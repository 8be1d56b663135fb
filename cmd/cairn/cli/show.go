package cli

import (
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cairn/api/client"
	"cairn/api/types"
)

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show SANDBOX|CHECKPOINT", Short: "Show everything about a sandbox or a checkpoint",
		Long:    "Show a sandbox by name or id; or a checkpoint by id, as @SANDBOX, or by its name where no sandbox has that.",
		Example: "  cairn show alice\n  cairn show @alice",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			ctx, ref := c.Context(), args[0]
			if !strings.HasPrefix(ref, "@") && !checkpointID.MatchString(ref) {
				sb, err := client.Get[types.Sandbox](a.client.GetSandbox(ctx, ref))
				if err == nil {
					return a.show(sb, func() error { return a.details(sandboxDetails(sb)) })
				}
				if code := client.CodeOf(err); code != types.NotFound && code != types.InvalidArgument {
					return err
				}
			}
			id, err := a.checkpoint(ctx, ref)
			if err != nil {
				return err
			}
			k, err := client.Get[types.Checkpoint](a.client.GetCheckpoint(ctx, id))
			if err != nil {
				return err
			}
			return a.show(k, func() error { return a.details(checkpointDetails(k)) })
		},
	}
}

func (a *app) details(rows [][2]string) error {
	for _, r := range rows {
		if err := a.line("%-14s %s", r[0], orDash(r[1])); err != nil {
			return err
		}
	}
	return nil
}

func sandboxDetails(s types.Sandbox) [][2]string {
	rows := [][2]string{
		{"id", s.Id},
		{"name", s.Name},
		{"state", string(s.State)},
		{"reason", s.Reason},
		{"image", s.Image},
		{"head", s.Head},
		{"forked from", s.ForkedFrom},
		{"generation", fmt.Sprint(s.Generation)},
		{"hostname", s.Hostname},
		{"network", string(s.Network)},
		{"command", strings.Join(s.Command, " ")},
		{"labels", list(s.Labels)},
		{"created", s.CreatedAt.Format(time.RFC3339)},
	}
	for _, h := range s.Hooks {
		rows = append(rows, [2]string{"hook", hookText(h)})
	}
	return rows
}

func checkpointDetails(k types.Checkpoint) [][2]string {
	return [][2]string{
		{"id", k.Id},
		{"name", k.Name},
		{"notes", k.Notes},
		{"kind", string(k.Kind)},
		{"sandbox", k.Sandbox},
		{"parent", k.Parent},
		{"children", strings.Join(k.Children, " ")},
		{"image", k.Image},
		{"method", string(k.Method)},
		{"durability", string(k.Durability)},
		{"digest", k.Digest},
		{"layer", fmt.Sprintf("%s in %d files", size(k.Sizes.LayerBytes), k.Sizes.LayerFiles)},
		{"exclusive", size(k.Sizes.ExclusiveBytes)},
		{"shared", size(k.Sizes.SharedBytes)},
		{"stack", fmt.Sprintf("%d layers", k.Layers)},
		{"frozen", fmt.Sprintf("%.2f ms", k.Timings.FreezeMs)},
		{"labels", list(k.Labels)},
		{"created", k.CreatedAt.Format(time.RFC3339)},
	}
}

func list(m map[string]string) string {
	var all []string
	for k, v := range m {
		all = append(all, k+"="+v)
	}
	sort.Strings(all)
	return strings.Join(all, " ")
}
