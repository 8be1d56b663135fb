package e2e

import (
	"io"
	"strings"
	"testing"

	"cairn/api/types"
)

// TestLivingProcesses takes checkpoints beside processes that could go on to
// change them, and has them try.
func TestLivingProcesses(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	for _, c := range []struct {
		role, path string
		method     types.CheckpointMethod
		refused    bool // the process is cut off from what it had open
	}{
		{"writer", "/w/held", types.Copy, false},
		{"mmap", "/w/mapped", types.Copy, false},
		{"dirfd", "/w/d/new", types.Copy, false},
		{"cwd", "/w/d/new", types.Copy, false},
		{"reopen", "/w/upper", types.Copy, false},
		{"reopen", "/w/a", types.Switch, true},
		{"reopen", "/etc/passwd", types.Switch, true},
		{"idle", "/w/later", types.Switch, false},
	} {
		t.Run(c.role+strings.ReplaceAll(c.path, "/", "-"), func(t *testing.T) {
			h.t = t
			sb := ok(h.create(types.CreateSandbox{}))(t)
			ok(h.sh(sb.Id, putState(before, after)))(t)
			ok(h.checkpoint(sb.Id))(t)
			ok(h.sh(sb.Id, "echo upper >/w/upper"))(t)
			p := h.play(t, sb.Id, c.role, c.path)
			cp := ok(h.durable(sb.Id))(t)
			if cp.Method != c.method {
				t.Errorf("the files were captured by %s, expected %s", cp.Method, c.method)
			}
			was := h.browse(t, cp.Id)
			done(t, h.stdin(sb.Id, p.Id, "changed\n"))
			var said string
			eventually(t, "the process has tried", func() bool {
				said = ok(h.output(sb.Id, p.Id))(t)
				return strings.Count(said, "\n") == 2
			})
			if took := strings.HasSuffix(said, "\nok\n"); took == c.refused {
				t.Errorf("the process says %q", said)
			}
			if d := unlike(h.browse(t, cp.Id), was); d != "" {
				t.Errorf("the checkpoint has changed:%s", d)
			}
			ok(h.verify(cp.Id))(t)
			if got, err := h.sh(sb.Id, "cat "+c.path); !c.refused && (err != nil || !strings.HasPrefix(got, "changed") && !strings.HasSuffix(got, "changed")) {
				t.Errorf("the sandbox has %q, %v", got, err)
			}
			child := ok(h.fork(cp.Id))(t)
			if d := unlike(h.list(t, child.Id), was); d != "" {
				t.Errorf("the fork is unlike the checkpoint:%s", d)
			}
			done(t, h.remove(child.Id))
			done(t, h.remove(sb.Id))
		})
	}
	h.t = t
}

// browse lists the worked directory of a checkpoint.
func (h *host) browse(t fataler, checkpoint string) (got tree) {
	t.Helper()
	done(t, h.checkpointTar(checkpoint, worked, func(r io.Reader) (err error) { got, err = treeInTar(r); return err }))
	return got
}
