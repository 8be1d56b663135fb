package demo

import "testing"

func TestDiffering(t *testing.T) {
	a := tree{"same": "x", "changed": "x", "gone": "x"}
	b := tree{"same": "x", "changed": "y", "new": "x"}
	if got := a.differing(b); got != 3 {
		t.Errorf("%d paths differ, want 3", got)
	}
	if got := a.differing(a); got != 0 {
		t.Errorf("a tree differs from itself in %d paths", got)
	}
}

func TestChanged(t *testing.T) {
	diff := "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
	if got, want := changed(diff), "-two\n+2"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
