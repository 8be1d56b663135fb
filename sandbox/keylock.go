package sandbox

import (
	"context"
	"sync"
)

// keyLocks is one shared/exclusive lock per key, with waiting that a context
// ends. Entries exist only while someone holds or waits for them.
type keyLocks struct {
	mu sync.Mutex
	m  map[string]*keyLock
}

type keyLock struct {
	users     int // holders and waiters
	shared    int
	exclusive string        // operation that holds it, "" for none
	waiting   int           // waiters for exclusive: new shared ones queue behind them
	changed   chan struct{} // closed at each release
}

func newKeyLocks() *keyLocks { return &keyLocks{m: map[string]*keyLock{}} }

// lock takes key for op: alone, or shared with other shared holders. It waits
// until ctx is done and then says which operation is in the way (CodeBusy).
func (l *keyLocks) lock(ctx context.Context, key, op string, exclusive bool) (unlock func(), err error) {
	l.mu.Lock()
	k := l.m[key]
	if k == nil {
		k = &keyLock{changed: make(chan struct{})}
		l.m[key] = k
	}
	k.users++
	if exclusive {
		k.waiting++
	}
	for !k.free(exclusive) {
		changed := k.changed
		l.mu.Unlock()
		select {
		case <-changed:
			l.mu.Lock()
		case <-ctx.Done():
			l.mu.Lock()
			running := k.exclusive
			if exclusive {
				k.waiting--
				k.wake()
			}
			l.leave(key, k)
			l.mu.Unlock()
			if running == "" {
				running = "exec"
			}
			return nil, &Error{
				Code: CodeBusy, Op: op, Running: running, Err: context.Cause(ctx),
				Message: "another operation (" + running + ") is running on this sandbox; try again when it has ended",
			}
		}
	}
	if exclusive {
		k.waiting--
		k.exclusive = op
	} else {
		k.shared++
	}
	l.mu.Unlock()
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if exclusive {
			k.exclusive = ""
		} else {
			k.shared--
		}
		k.wake()
		l.leave(key, k)
	}), nil
}

func (k *keyLock) free(exclusive bool) bool {
	if exclusive {
		return k.exclusive == "" && k.shared == 0
	}
	return k.exclusive == "" && k.waiting == 0
}

func (k *keyLock) wake() {
	close(k.changed)
	k.changed = make(chan struct{})
}

func (l *keyLocks) leave(key string, k *keyLock) {
	if k.users--; k.users == 0 {
		delete(l.m, key)
	}
}
