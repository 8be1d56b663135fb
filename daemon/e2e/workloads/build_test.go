package workloads

import (
	"fmt"
	"strconv"
	"testing"

	"cairn/api/types"
)

// TestBuild checkpoints make, gcc and git in the middle: make compiles on two tracks, and
// then git commits what was made. Whatever became of it meanwhile, restored and forked it
// goes on to the same end as where nobody interfered.
func TestBuild(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.sh(`mkdir /w/src && cd /w/src && cp /w/Makefile /w/gen.sh . && sh gen.sh main >main.c
		git init -q . && git config user.name n && git config user.email e@x && git add . && git commit -qm start`)
	const script = `set -e; make -j2 >/w/log 2>&1
		for o in f*.o; do git add $o; git commit -qm $o; done; ./prog >/w/result; git gc -q; git fsck --strict`
	build := b.starts(types.Exec{Command: []string{"bash", "-c", script}, Cwd: ptr("/w/src")})
	count := func(b *box, script string) int {
		b.t.Helper()
		return must(strconv.Atoi(b.sh("cd /w/src && " + script)))(b.t)
	}
	objects := func(b *box) int { b.t.Helper(); return count(b, "ls | grep -c '[.]o$' || true") }
	commits := func(b *box) int { b.t.Helper(); return count(b, "git rev-list --count HEAD") }
	b.eventually("some files are compiled", func() bool { return objects(b) >= 5 })
	compiling := b.checkpoint()
	b.eventually("some files are committed", func() bool { return commits(b) >= 5 })
	committing := b.checkpoint()
	finished := func(b *box) string {
		b.t.Helper()
		b.eventually("the build ends", func() bool { return b.process(build).State != types.ProcessStateRunning })
		if p := b.process(build); p.ExitCode != 0 {
			text, _ := b.output(build, 0)
			b.t.Fatalf("the build ended with %d %s: %s%s", p.ExitCode, p.Signal, text, b.sh("tail -5 /w/log"))
		}
		if s := b.sh("cd /w/src && git status --porcelain --untracked-files=no"); s != "" {
			b.t.Errorf("git says %s", s)
		}
		return fmt.Sprintf("%d commits, result %s, objects %s", commits(b), b.sh("cat /w/result"), b.sh("cd /w/src && cat f*.o | sha256sum"))
	}
	was := finished(b)
	for _, cp := range []types.Checkpoint{committing, compiling} {
		for i, child := range b.fork(cp.Id, 2) {
			if got := finished(child); got != was {
				t.Errorf("fork %d ends with %s, expected %s", i, got, was)
			}
			child.remove()
		}
		b.restore(cp.Id)
		if got := finished(b); got != was {
			t.Errorf("restored it ends with %s, expected %s", got, was)
		}
	}
}
