package overlay

import (
	"context"
	"slices"
	"testing"
)

// A directory that was replaced goes on hiding what is below the squashed
// layers, whichever of them says so.
func TestSquashKeepsReplacedDirectories(t *testing.T) {
	p := newPool(t)
	c := startContainer(t, p, 200000)
	layers := []string{}
	for i, ops := range [][]op{
		{mkdir("/d/sub"), create("/d/x", "x"), create("/d/sub/x", "x"), create("/f", "f")},
		{remove("/d"), mkdir("/d/sub"), create("/d/y", "y"), remove("/f"), mkdir("/f")},
		{create("/d/z", "z"), create("/d/sub/z", "z"), create("/f/z", "z")},
	} {
		upper := fresh(t, p, "l"+itoa(i))
		c.attach(p, upper, layers...)
		c.do(ops...)
		layers = slices.Insert(layers, 0, upper)
	}
	want := c.snapshot()
	if err := p.Squash(context.Background(), "s", layers[:2], layers[2:]); err != nil {
		t.Fatal(err)
	}
	mustEqual(t, "squashed", viewed(t, p, []string{"s", "l0"}), want)
	if _, ok := want["./d/x"]; ok {
		t.Error("/d was not replaced")
	}
}
