package cli

import (
	"context"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"cairn/api/client"
	"cairn/api/types"
)

var checkpointID = regexp.MustCompile(`^ckpt_[0-9A-Za-z]{26}$`)

func notFound(what string) error {
	return &client.Error{Problem: types.Problem{Code: types.NotFound, Detail: what}}
}

// checkpoint finds the id of a checkpoint from what a person wrote.
func (a *app) checkpoint(ctx context.Context, ref string) (string, error) {
	if checkpointID.MatchString(ref) {
		return ref, nil
	}
	if name, ok := strings.CutPrefix(ref, "@"); ok {
		sb, err := client.Get[types.Sandbox](a.client.GetSandbox(ctx, name))
		if err != nil {
			return "", err
		}
		if sb.Head == "" {
			return "", notFound("sandbox " + printable(name) + " has no checkpoint yet")
		}
		return sb.Head, nil
	}
	l, err := client.Get[types.CheckpointList](a.client.ListCheckpoints(ctx, &types.ListCheckpointsParams{Name: &ref, Limit: new(10)}))
	if err != nil {
		return "", err
	}
	switch len(l.Items) {
	case 0:
		return "", notFound("there is no checkpoint " + printable(ref))
	case 1:
		return l.Items[0].Id, nil
	}
	ids := make([]string, len(l.Items))
	for i, c := range l.Items {
		ids[i] = c.Id
	}
	return "", usagef("more than one checkpoint is named %s: %s", printable(ref), strings.Join(ids, ", "))
}

// sandboxThen completes the first argument with sandboxes and others with rest.
func (a *app) sandboxThen(rest cobra.CompletionFunc) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return a.completeSandboxes(c, args, prefix)
		}
		if rest != nil {
			return rest(c, args, prefix)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *app) completeSandboxes(c *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if a.connect() != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	l, err := client.Get[types.SandboxList](a.client.ListSandboxes(c.Context(), &types.ListSandboxesParams{Limit: new(1000)}))
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, s := range l.Items {
		if strings.HasPrefix(s.Name, prefix) {
			names = append(names, s.Name+"\t"+string(s.State))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) completeCheckpoints(c *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if a.connect() != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	l, err := client.Get[types.CheckpointList](a.client.ListCheckpoints(c.Context(), &types.ListCheckpointsParams{Limit: new(1000)}))
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, k := range l.Items {
		for _, n := range []string{k.Id, k.Name} {
			if n != "" && strings.HasPrefix(n, prefix) {
				names = append(names, n+"\t"+k.Sandbox+" "+ago(k.CreatedAt))
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) completeImages(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || a.connect() != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	l, err := client.Get[types.ImageList](a.client.ListImages(c.Context(), &types.ListImagesParams{Limit: new(1000)}))
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, i := range l.Items {
		if strings.HasPrefix(i.Name, prefix) {
			names = append(names, i.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
