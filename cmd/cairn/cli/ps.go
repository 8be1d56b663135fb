package cli

import (
	"github.com/spf13/cobra"

	"cairn/api/client"
	"cairn/api/types"
)

func (a *app) psCommand() *cobra.Command {
	var state string
	var labels []string
	c := &cobra.Command{
		Use: "ps", Short: "List sandboxes",
		Example: "  cairn ps --state running -l team=red",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := client.All(func(cursor *string) ([]types.Sandbox, string, error) {
				p := &types.ListSandboxesParams{State: set(types.SandboxState(state)), Cursor: cursor, Limit: new(1000)}
				if len(labels) > 0 {
					p.Label = &labels
				}
				l, err := client.Get[types.SandboxList](a.client.ListSandboxes(c.Context(), p))
				return l.Items, l.NextCursor, err
			})
			if err != nil {
				return err
			}
			return a.show(types.SandboxList{Items: append([]types.Sandbox{}, all...)}, func() error {
				var rows [][]string
				for _, s := range all {
					rows = append(rows, []string{printable(s.Name), s.Id, string(s.State), printable(s.Image), orDash(s.Head), ago(s.CreatedAt)})
				}
				return a.table("NAME\tID\tSTATE\tIMAGE\tHEAD\tCREATED", rows)
			})
		},
	}
	c.Flags().StringVar(&state, "state", "", "only those in this state")
	c.Flags().StringArrayVarP(&labels, "label", "l", nil, "only those with this label KEY=VALUE (repeatable)")
	return c
}
