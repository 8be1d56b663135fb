package runtime

import (
	"testing"

	"cairn/sandbox"
)

func TestLife(t *testing.T) {
	h := newHost(t)
	r := h.open(t, nil)
	c, warm, err := r.Acquire(t.Context(), sandbox.NetworkNone)
	if err != nil {
		t.Fatal(err)
	}
	if warm {
		t.Error("warm without a pool")
	}
	if _, err := c.Guest().Start(t.Context(), sandbox.GuestStart{ID: "p1", Command: []string{"/bin/busybox", "id"}}); err != nil {
		t.Fatal(err)
	}
	if e, err := c.Guest().Wait(t.Context(), "p1", 0); err != nil || e.ExitCode != 0 {
		t.Fatal(e, err)
	}
	t.Log(output(t, c, "p1"))
	if err := r.Destroy(t.Context(), c.Name()); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
}
