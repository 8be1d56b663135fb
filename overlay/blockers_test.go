package overlay

import (
	"sort"
	"strings"
	"testing"
)

// Every state that blocks is found for what it is, and no other.
func TestBlockers(t *testing.T) {
	p := newPool(t)
	var roles []string
	for role := range agents() {
		roles = append(roles, role)
	}
	sort.Strings(roles)
	c := startContainer(t, p, 400000)
	c.attach(p, fresh(t, p, "l"))
	c.do(create("/lower", strings.Repeat("l", 4096)), mkdir("/lowerdir"), create("/lowerdir/f", ""),
		op{Kind: "mkfifo", Path: []byte("/fifo")})
	for i, role := range roles {
		t.Run(role, func(t *testing.T) {
			c.t = t
			c.attach(p, fresh(t, p, "u"+itoa(i)), "l")
			c.do(create("/upper", strings.Repeat("u", 4096)), mkdir("/upperdir"))
			root, err := p.Attached(c.pid())
			if err != nil {
				t.Fatal(err)
			}
			inside := c.ask(request{Agent: role}).PID
			defer func() {
				c.ask(request{Kill: inside})
				// A child of its own ends a moment later.
				await(t, "end of the agent", func() bool { return len(processesOf(t, c.pid())) == 1 })
			}()
			got, err := p.Blockers(processesOf(t, c.pid()), root)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(role, "ok ") {
				if len(got) != 0 {
					t.Fatalf("blocked: %+v", got)
				}
				return
			}
			want := Reason(strings.Split(role, " ")[0])
			if len(got) != 1 || got[0].Reason != want {
				t.Fatalf("%+v, expected %q", got, want)
			}
		})
	}
}
