package cli

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"cairn/api/client"
	"cairn/api/types"
)

func (a *app) infoCommand() *cobra.Command {
	return &cobra.Command{
		Use: "info", Short: "Show the daemon's version, features, pool and limits", Example: "  cairn info", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			i, err := client.Get[types.Info](a.client.GetInfo(c.Context()))
			if err != nil {
				return err
			}
			return a.show(i, func() error {
				rows := [][2]string{
					{"version", i.Version},
					{"kernel", i.Kernel},
					{"pool", i.Pool.Path + " (" + i.Pool.FileSystem + ")"},
					{"free", size(i.Pool.FreeBytes) + " of " + size(i.Pool.SizeBytes)},
				}
				for _, k := range slices.Sorted(maps.Keys(i.Pool.Warm)) {
					rows = append(rows, [2]string{"warm " + k, fmt.Sprint(i.Pool.Warm[k])})
				}
				for _, k := range slices.Sorted(maps.Keys(i.Features)) {
					rows = append(rows, [2]string{k, i.Features[k]})
				}
				for _, k := range slices.Sorted(maps.Keys(i.Limits)) {
					rows = append(rows, [2]string{"limit " + k, fmt.Sprint(i.Limits[k])})
				}
				return a.details(rows)
			})
		},
	}
}
