package stem_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"cairn/sandbox/stem"
)

// memory returns a process's resident set size, and the part of it that it shares with no
// other sandbox, as it does the program's text, in KiB.
func memory(t *testing.T, pid int) (rss, own int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	check(t, err)
	for _, line := range strings.Split(string(text), "\n") {
		f := strings.Fields(line)
		if len(f) == 3 && f[0] == "Rss:" {
			rss, _ = strconv.Atoi(f[1])
		}
		if len(f) == 3 && f[0] == "Anonymous:" {
			own, _ = strconv.Atoi(f[1])
		}
	}
	return rss, own
}

// Both roles are resident in every sandbox.
func TestMemory(t *testing.T) {
	const limit, ownLimit = 5 << 10, 3 << 10 // KiB, each
	b := newBox(t, stem.Options{})
	report := func(when string) {
		for name, pid := range map[string]int{"PID 1": b.init, "stem": b.hostPID(t)} {
			rss, own := memory(t, pid)
			t.Logf("%s: %s RSS %d KiB, its own %d KiB", when, name, rss, own)
			if rss <= 0 || rss > limit || own <= 0 || own > ownLimit {
				t.Errorf("%s: %s has %d KiB resident, %d KiB of its own", when, name, rss, own)
			}
		}
	}
	report("idle")
	for range 300 {
		res := b.sh(t, "echo x")
		check(t, b.Forget(t.Context(), res.id))
	}
	report("after 300 processes")
}
