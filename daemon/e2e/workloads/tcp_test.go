package workloads

import "testing"

// TestEstablishedTCP shows that connections by TCP are closed in what comes back, also
// within the sandbox, that those by Unix sockets are not, and that who listens goes on to.
// The sandbox that was checkpointed keeps all.
func TestEstablishedTCP(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	id := b.daemon("python3", "/w/tcp.py")
	const whole, cut = "tcp open, unix open, anew open", "tcp ended, unix open, anew open"
	expect := func(b *box, where, want string) {
		t.Helper()
		if got := b.asks(id, "?", `<(.*)>`); got != want {
			t.Errorf("%s: %s, expected %s", where, got, want)
		}
	}
	expect(b, "before", whole)
	cp := b.checkpoint()
	expect(b, "after the checkpoint", whole)
	b.restore(cp.Id)
	expect(b, "after the restore", cut)
	expect(b.fork(cp.Id, 1)[0], "in a fork", cut)
}
