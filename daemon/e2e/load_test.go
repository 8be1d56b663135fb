package e2e

import (
	"fmt"
	"sync"
	"testing"

	"cairn/api/client"
	"cairn/api/types"
)

// TestCrashUnderLoad kills the daemon again and again while sandboxes live and
// die: whatever the next one finds is whole and works.
func TestCrashUnderLoad(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{warm: 2, maxDepth: 2})
	for round, lives := range []int{1, 3, 7} {
		ended := make(chan struct{})
		var wg sync.WaitGroup
		for worker := range 6 {
			wg.Go(func() {
				for i := 0; ; i++ {
					if err := h.life(fmt.Sprintf("w-%d-%d-%d", round, worker, i)); err != nil {
						if client.CodeOf(err) != "" {
							t.Errorf("an error of the daemon's own: %v", err)
						}
						return // the daemon is dead
					}
					select {
					case ended <- struct{}{}:
					case <-h.ended:
					}
				}
			})
		}
		for range lives {
			<-ended
		}
		h.kill()
		wg.Wait()
		h.start()
		h.sound(t)
		h.deleteAll()
	}
}

// sound checks every sandbox and checkpoint there is.
func (h *host) sound(t *testing.T) {
	t.Helper()
	for _, cp := range ok(h.checkpoints())(t) {
		got, err := h.stateIn(cp.Id)
		want := before
		if cp.Kind == types.BeforeRestore {
			want = after
		}
		if err != nil || got != want {
			t.Errorf("checkpoint %s (%s) of %s has %s, expected %s: %v", cp.Id, cp.Kind, cp.Sandbox, got, want, err)
		}
		ok(h.verify(cp.Id))(t)
	}
	for _, sb := range ok(h.sandboxes())(t) {
		if sb.State != types.SandboxStateRunning {
			t.Errorf("sandbox %s is %s: %s", sb.Name, sb.State, sb.Reason)
			continue
		}
		// The command that was running when the daemon died may still be at it.
		eventually(t, sb.Name+" is whole", func() bool {
			ok(h.sh(sb.Id, "true"))(t)
			if _, err := h.stateOf(sb.Id); err == nil {
				return true
			}
			return ok(h.sh(sb.Id, "ls -d /w 2>/dev/null || true"))(t) == ""
		})
		cp := ok(h.checkpoint(sb.Id))(t)
		ok(h.restore(sb.Id, cp.Id))(t)
	}
}

// TestEgressAcrossCrash keeps a sandbox's network while the daemon is away, and
// takes everything of it from the host in the end.
func TestEgressAcrossCrash(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	sb := ok(h.create(types.CreateSandbox{Network: ptr(types.Egress)}))(t)
	const addresses = "cat /proc/net/fib_trie | grep -B1 'host LOCAL' | grep -v 127.0.0 | grep -o '[0-9.]*$' | sort -u | tail -1"
	was := ok(h.sh(sb.Id, addresses))(t)
	if was == "" {
		t.Error("the sandbox has no address")
	}
	ok(h.sh(sb.Id, putState(before, after)))(t)
	cp := ok(h.checkpoint(sb.Id))(t)
	child := ok(h.fork(cp.Id))(t)
	h.crash()
	if got := ok(h.sh(sb.Id, addresses))(t); got != was {
		t.Errorf("the address was %s and is %s", was, got)
	}
	if got := ok(h.sh(child.Id, addresses))(t); got == was || got == "" {
		t.Errorf("the fork has the address %q, its origin %s", got, was)
	}
	ok(h.restore(sb.Id, cp.Id))(t)
	if got := ok(h.sh(sb.Id, addresses))(t); got != was {
		t.Errorf("the address was %s and is %s after a restore", was, got)
	}
}
