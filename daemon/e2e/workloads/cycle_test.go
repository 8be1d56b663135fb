package workloads

import (
	"fmt"
	"testing"

	"cairn/api/types"
)

// workload is a program that is put through the cycle.
type workload struct {
	// start starts it, returns when it serves, and gives the ids of its processes.
	start func(b *box) []string
	// state gives all that matters of its memory and files: the same as long as nothing
	// is changed.
	state func(b *box, ids []string) string
	// change makes it go on, with a word that its state shows from then on.
	change func(b *box, ids []string, word string)
	// revived, unless nil, is done after each restore and in each fork, before the state
	// is looked at.
	revived func(b *box, ids []string)
	// forks is how many; 0 is 2.
	forks int
}

const markPath = "/w/mark"

func (w workload) look(b *box, ids []string) string {
	b.t.Helper()
	return fmt.Sprintf("%s\nfile: %s", w.state(b, ids), b.sh("cat "+markPath))
}

func (w workload) alter(b *box, ids []string, word string) {
	b.t.Helper()
	w.change(b, ids, word)
	b.sh(fmt.Sprintf("echo %s >>%s", word, markPath))
}

// back checks that a workload is as it was, and lives.
func (w workload) back(b *box, ids []string, was, where string) {
	b.t.Helper()
	for _, id := range ids {
		if p := b.process(id); p.State != types.ProcessStateRunning {
			text, _ := b.output(id, 0)
			b.t.Fatalf("%s: %v is %s with %d: %s", where, p.Command, p.State, p.ExitCode, text)
		}
	}
	if w.revived != nil {
		w.revived(b, ids)
	}
	if got := w.look(b, ids); got != was {
		b.t.Fatalf("%s: the state is\n%s\nexpected\n%s", where, got, was)
	}
}

// cycle checkpoints a workload, lets it go on, takes it back, and forks it.
func (w workload) cycle(t *testing.T) {
	t.Helper()
	t.Parallel()
	b := newBox(t)
	ids := w.start(b)
	w.alter(b, ids, "first")
	was := w.look(b, ids)
	cp := b.checkpoint()
	w.goesOn(b, ids, was, "after the checkpoint", "second")
	b.restore(cp.Id)
	w.back(b, ids, was, "after the restore")
	later := w.goesOn(b, ids, was, "after the restore", "third")
	n := max(w.forks, 2)
	children := b.fork(cp.Id, n)
	seen := map[string]string{later: "the sandbox"}
	for i, child := range children {
		w.back(child, ids, was, fmt.Sprintf("in fork %d", i))
	}
	for i, child := range children {
		name := fmt.Sprintf("fork%d", i)
		s := w.goesOn(child, ids, was, "in "+name, name)
		if other, same := seen[s]; same {
			t.Errorf("%s is like %s:\n%s", name, other, s)
		}
		seen[s] = name
	}
	for i, child := range children {
		if s := w.look(child, ids); seen[s] != fmt.Sprintf("fork%d", i) {
			t.Errorf("fork %d has changed without being asked:\n%s", i, s)
		}
		child.remove()
	}
	if s := w.look(b, ids); s != later {
		t.Errorf("the sandbox has\n%s\nexpected\n%s", s, later)
	}
}

// goesOn changes the state and gives it.
func (w workload) goesOn(b *box, ids []string, was, where, word string) string {
	b.t.Helper()
	if got := w.look(b, ids); got != was {
		b.t.Fatalf("%s: the state is\n%s\nexpected\n%s", where, got, was)
	}
	w.alter(b, ids, word)
	now := w.look(b, ids)
	if now == was {
		b.t.Fatalf("%s: it does not go on:\n%s", where, now)
	}
	return now
}
