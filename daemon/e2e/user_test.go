package e2e

import (
	"testing"

	"cairn/api/types"
)

// TestOtherUser checks that PID 1 goes on seeing what the stem executes after commands of
// another user: by that it knows a stem that was restored, and starts no second one.
func TestOtherUser(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	sb := ok(h.create(types.CreateSandbox{User: ptr("1000")}))(t)
	p := h.play(t, sb.Id, "idle", "/tmp/idle")
	stems := func() string {
		t.Helper()
		const list = `for p in /proc/[0-9]*; do [ "$(cut -d' ' -f4 $p/stat)" = 1 ] && readlink $p/exe && stat -c %u $p; done; true`
		r := ok(h.exec(sb.Id, types.Exec{User: ptr("0"), Command: []string{"sh", "-c", list}}))(t)
		return r.Stdout + r.Stderr
	}
	const one = "/.cairn/cairn-init\n0\n"
	if got := stems(); got != one {
		t.Errorf("the children of PID 1 are %q", got)
	}
	cp := ok(h.dump(sb.Id))(t)
	for range 3 {
		ok(h.revive(sb.Id, cp.Id))(t)
		if got := stems(); got != one {
			t.Errorf("restored, the children of PID 1 are %q", got)
		}
		if proc := ok(h.process(sb.Id, p.Id))(t); proc.State != types.ProcessStateRunning {
			t.Errorf("restored, the process is %s", proc.State)
		}
	}
}
