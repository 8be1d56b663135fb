package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"cairn/api/client"
	"cairn/api/types"
)

func (a *app) diffCommand() *cobra.Command {
	var file, from string
	c := &cobra.Command{
		Use: "diff SANDBOX | diff CHECKPOINT CHECKPOINT", Short: "Show what differs between two checkpoints, or a checkpoint and now",
		Long: `With two checkpoints, show what the second has otherwise than the first. With a
sandbox, show what it has otherwise now than its head, or than --from. Lines begin
with A (added), M (modified), D (deleted), T (another type) or m (only metadata).
With --file, show the unified diff of one file.`,
		Example: "  cairn diff alice\n  cairn diff good better --file /app/main.c",
		Args:    cobra.RangeArgs(1, 2), ValidArgsFunction: a.completeCheckpoints,
		RunE: func(c *cobra.Command, args []string) error {
			ctx := c.Context()
			var d types.Diff
			if len(args) == 1 {
				p := &types.DiffSandboxParams{Path: set(file)}
				if from != "" {
					id, err := a.checkpoint(ctx, from)
					if err != nil {
						return err
					}
					p.From = &id
				}
				var err error
				if d, err = client.Get[types.Diff](a.client.DiffSandbox(ctx, args[0], p)); err != nil {
					return err
				}
			} else {
				if from != "" {
					return usagef("--from goes with a sandbox alone")
				}
				old, err := a.checkpoint(ctx, args[0])
				if err != nil {
					return err
				}
				now, err := a.checkpoint(ctx, args[1])
				if err != nil {
					return err
				}
				if d, err = client.Get[types.Diff](a.client.DiffCheckpoints(ctx, old, &types.DiffCheckpointsParams{To: now, Path: set(file)})); err != nil {
					return err
				}
			}
			return a.show(d, func() error { return a.printDiff(d) })
		},
	}
	c.Flags().StringVar(&file, "file", "", "the unified diff of this file")
	c.Flags().StringVar(&from, "from", "", "with a sandbox: the checkpoint to compare with")
	return c
}

func (a *app) printDiff(d types.Diff) error {
	if d.Diff != nil {
		_, err := fmt.Fprint(a.Out, *d.Diff)
		return err
	}
	for _, c := range d.Items {
		more := ""
		switch {
		case c.OldType != nil && *c.OldType != "":
			more = "  " + *c.OldType + " -> " + c.Type
		case c.Type == "file" && c.Kind == types.Modified:
			more = fmt.Sprintf("  %s -> %s", size(c.OldSizeBytes), size(c.NewSizeBytes))
		case c.Type == "file" && c.Kind == types.Added:
			more = "  " + size(c.NewSizeBytes)
		case c.OldMode != c.NewMode && c.Kind == types.MetadataChanged:
			more = "  " + c.OldMode + " -> " + c.NewMode
		}
		path := printable(c.Path)
		if c.Type == "directory" {
			path = strings.TrimSuffix(path, "/") + "/"
		}
		if err := a.line("%s %s%s", changeLetter(c.Kind), path, more); err != nil {
			return err
		}
	}
	return nil
}

func changeLetter(k types.ChangeKind) string {
	switch k {
	case types.Added:
		return "A"
	case types.Modified:
		return "M"
	case types.Deleted:
		return "D"
	case types.TypeChanged:
		return "T"
	case types.MetadataChanged:
		return "m"
	}
	return "?"
}
