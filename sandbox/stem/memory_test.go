package stem_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"cairn/sandbox/stem"
)

// memory returns a process's resident and proportional set size in KiB.
func memory(t *testing.T, pid int) (rss, pss int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	check(t, err)
	for _, line := range strings.Split(string(text), "\n") {
		f := strings.Fields(line)
		if len(f) == 3 && f[0] == "Rss:" {
			rss, _ = strconv.Atoi(f[1])
		}
		if len(f) == 3 && f[0] == "Pss:" {
			pss, _ = strconv.Atoi(f[1])
		}
	}
	return rss, pss
}

// Both roles are resident in every sandbox.
func TestMemory(t *testing.T) {
	const limit = 4 << 10 // KiB, each
	b := newBox(t, stem.Options{})
	report := func(when string) {
		for name, pid := range map[string]int{"PID 1": b.init, "stem": b.hostPID(t)} {
			rss, pss := memory(t, pid)
			t.Logf("%s: %s RSS %d KiB, PSS %d KiB", when, name, rss, pss)
			if rss <= 0 || rss > limit {
				t.Errorf("%s: %s has %d KiB resident", when, name, rss)
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
