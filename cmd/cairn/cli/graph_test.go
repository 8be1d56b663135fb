package cli

import (
	"strings"
	"testing"
	"time"

	"cairn/api/types"
)

func TestGraph(t *testing.T) {
	var tl types.Timeline
	for _, e := range []string{"a ", "b a", "c a", "d b", "e a", "f c", "g "} {
		id, parent, _ := strings.Cut(e, " ")
		tl.Checkpoints = append(tl.Checkpoints, types.Checkpoint{Id: id, Parent: parent, Durability: types.DurabilityDurable})
	}
	tl.Heads = []types.Head{{Sandbox: "s", State: types.SandboxStateRunning, Checkpoint: "d"}, {Sandbox: "new\x1b", State: types.SandboxStatePaused}}
	now := time.Now()
	for i := range tl.Checkpoints {
		tl.Checkpoints[i].CreatedAt = now.Add(-time.Hour)
	}
	got := strings.ReplaceAll(strings.Join(graph(tl), "\n"), "  1h ago, 0B", "")
	want := strings.Join([]string{
		"* g",
		"* f",
		"| * e",
		"| | * d (s)",
		"* | | c",
		"| | * b",
		"|_|/",
		"|/",
		"* a",
		`  ("new\x1b" paused) no checkpoint yet`,
	}, "\n")
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
