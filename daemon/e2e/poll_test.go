package e2e

import (
	"testing"
	"time"
)

// patience bounds every wait. It only decides how long a failing test takes.
const patience = time.Minute

// fataler is what testing.TB and rapid's T have in common.
type fataler interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

var _ fataler = testing.TB(nil)

// eventually returns when cond holds, and fails when it does not come to.
func eventually(t fataler, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("it did not come about that %s", what)
		}
	}
}

// ok gives the value of a call that must succeed: ok(f())(t).
func ok[T any](v T, err error) func(fataler) T {
	return func(t fataler) T {
		t.Helper()
		if err != nil {
			t.Fatalf("%v", err)
		}
		return v
	}
}

// done fails unless the call succeeded.
func done(t fataler, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

func ptr[T any](v T) *T { return &v }
