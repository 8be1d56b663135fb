package sandbox

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestKeyLockExcludes(t *testing.T) {
	l := newKeyLocks()
	var inside, most atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			unlock, err := l.lock(t.Context(), "a", "checkpoint", true)
			if err != nil {
				t.Error(err)
				return
			}
			most.Store(max(most.Load(), inside.Add(1)))
			inside.Add(-1)
			unlock()
		})
	}
	wg.Wait()
	if most.Load() != 1 {
		t.Errorf("%d holders at once", most.Load())
	}
	if len(l.m) != 0 {
		t.Errorf("%d entries are left", len(l.m))
	}
}

func TestKeyLockNamesTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newKeyLocks()
		unlock, err := l.lock(t.Context(), "a", "restore", true)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = l.lock(ctx, "a", "checkpoint", true)
		var e *Error
		if !errors.As(err, &e) || e.Code != CodeBusy || e.Running != "restore" {
			t.Fatalf("got %v, want busy with restore", err)
		}
		unlock()
		unlock() // twice is once
		again, err := l.lock(t.Context(), "a", "checkpoint", true)
		if err != nil {
			t.Fatal(err)
		}
		again()
	})
}

func TestKeyLockSharesAndDoesNotStarve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newKeyLocks()
		first, err := l.lock(t.Context(), "a", "exec", false)
		if err != nil {
			t.Fatal(err)
		}
		second, err := l.lock(t.Context(), "a", "exec", false)
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan string, 2)
		go func() {
			unlock, err := l.lock(t.Context(), "a", "restore", true)
			if err != nil {
				t.Error(err)
				return
			}
			got <- "restore"
			unlock()
		}()
		synctest.Wait()
		go func() { // comes after the restore that waits, so it must not pass it
			unlock, err := l.lock(t.Context(), "a", "exec", false)
			if err != nil {
				t.Error(err)
				return
			}
			got <- "exec"
			unlock()
		}()
		synctest.Wait()
		first()
		second()
		if a, b := <-got, <-got; a != "restore" || b != "exec" {
			t.Errorf("order %s, %s", a, b)
		}
	})
}

func TestKeyLockGivesUpCleanly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newKeyLocks()
		shared, err := l.lock(t.Context(), "a", "exec", false)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() { _, err := l.lock(ctx, "a", "restore", true); failed <- err }()
		synctest.Wait()
		late := make(chan struct{})
		go func() {
			unlock, err := l.lock(t.Context(), "a", "exec", false)
			if err != nil {
				t.Error(err)
				return
			}
			unlock()
			close(late)
		}()
		synctest.Wait()
		cancel()
		if err := <-failed; CodeOf(err) != CodeBusy {
			t.Errorf("got %v", err)
		}
		<-late // the shared lock behind the waiter that gave up goes on
		shared()
		synctest.Wait()
		if len(l.m) != 0 {
			t.Errorf("%d entries are left", len(l.m))
		}
	})
}
