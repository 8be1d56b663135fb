package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"cairn/api/client"
	"cairn/api/types"
)

func (a *app) logCommand() *cobra.Command {
	return &cobra.Command{
		Use: "log [SANDBOX]", Short: "Show the timeline: the tree of checkpoints with the heads on it",
		Long:    "Show checkpoints, newest first, as a tree. Sandboxes stand in parentheses at their head. With a sandbox, show only what it descends from and what was taken in it.",
		Example: "  cairn log\n  cairn log alice",
		Args:    cobra.MaximumNArgs(1), ValidArgsFunction: a.sandboxThen(nil),
		RunE: func(c *cobra.Command, args []string) error {
			t, err := client.Get[types.Timeline](a.client.GetTimeline(c.Context()))
			if err != nil {
				return err
			}
			if len(args) == 1 {
				sb, err := client.Get[types.Sandbox](a.client.GetSandbox(c.Context(), args[0]))
				if err != nil {
					return err
				}
				t = only(t, sb)
			}
			return a.show(t, func() error {
				for _, l := range graph(t) {
					if err := a.line("%s", l); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

// only keeps what a sandbox descends from and what was taken in it.
func only(t types.Timeline, sb types.Sandbox) types.Timeline {
	parent := make(map[string]string)
	for _, k := range t.Checkpoints {
		parent[k.Id] = k.Parent
	}
	keep := make(map[string]bool)
	for id := sb.Head; id != "" && !keep[id]; id = parent[id] {
		keep[id] = true
	}
	out := types.Timeline{Checkpoints: []types.Checkpoint{}, Heads: []types.Head{}}
	for _, k := range t.Checkpoints {
		if keep[k.Id] || k.SandboxId == sb.Id {
			out.Checkpoints = append(out.Checkpoints, k)
		}
	}
	for _, h := range t.Heads {
		if h.SandboxId == sb.Id {
			out.Heads = append(out.Heads, h)
		}
	}
	return out
}

// graph draws the timeline as lines, newest first, in the manner of git log
// --graph. A lane is a column that waits for the checkpoint it names; several
// lanes that wait for the same one are joined above it.
func graph(t types.Timeline) []string {
	heads := make(map[string][]string)
	var lines, bare []string
	for _, h := range t.Heads {
		name := printable(h.Sandbox)
		if h.State != types.SandboxStateRunning {
			name += " " + string(h.State)
		}
		if h.Checkpoint == "" {
			bare = append(bare, "  ("+name+") no checkpoint yet")
		} else {
			heads[h.Checkpoint] = append(heads[h.Checkpoint], name)
		}
	}
	shown := make(map[string]bool, len(t.Checkpoints))
	for _, k := range t.Checkpoints {
		shown[k.Id] = true
	}
	var lanes []string
	for i := len(t.Checkpoints) - 1; i >= 0; i-- {
		k := t.Checkpoints[i]
		at := lane(lanes, k.Id)
		if at < 0 {
			if at = lane(lanes, ""); at < 0 {
				at, lanes = len(lanes), append(lanes, "")
			}
		}
		for j := len(lanes) - 1; j > at; j-- {
			if lanes[j] == k.Id {
				lanes[j] = ""
				lines = append(lines, joinLine(lanes, at, j))
			}
		}
		lanes[at] = k.Id
		lines = append(lines, row(lanes, at)+" "+describe(k, heads[k.Id]))
		lanes[at] = ""
		if shown[k.Parent] {
			lanes[at] = k.Parent
		}
	}
	return append(lines, bare...)
}

func lane(lanes []string, id string) int {
	for i, l := range lanes {
		if l == id {
			return i
		}
	}
	return -1
}

// row draws the lanes with a star at one of them.
func row(lanes []string, star int) string {
	var b strings.Builder
	for i, l := range lanes {
		switch {
		case i == star:
			b.WriteByte('*')
		case l != "":
			b.WriteByte('|')
		default:
			b.WriteByte(' ')
		}
		b.WriteByte(' ')
	}
	return strings.TrimRight(b.String(), " ")
}

// joinLine draws lane from running into lane to, which is left of it.
func joinLine(lanes []string, to, from int) string {
	b := []byte(strings.Repeat(" ", 2*max(len(lanes), from+1)))
	for i, l := range lanes {
		if l != "" {
			b[2*i] = '|'
		}
	}
	b[2*to] = '|'
	for i := 2*to + 1; i < 2*from-1; i++ {
		if b[i] == ' ' {
			b[i] = '_'
		}
	}
	b[2*from-1] = '/'
	return strings.TrimRight(string(b), " ")
}

func describe(k types.Checkpoint, heads []string) string {
	s := k.Id
	if len(heads) > 0 {
		s += " (" + strings.Join(heads, ", ") + ")"
	}
	if k.Name != "" {
		s += " " + printable(k.Name)
	}
	switch k.Kind {
	case types.BeforeRestore:
		s += " [before restore]"
	case types.ForkPoint:
		s += " [fork point]"
	case types.Manual:
	}
	s += "  " + ago(k.CreatedAt) + ", " + size(k.Sizes.LayerBytes)
	if k.Durability != types.DurabilityDurable {
		s += ", " + string(k.Durability)
	}
	return s
}
