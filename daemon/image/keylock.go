package image

import (
	"context"
	"sync"
)

// keyLocks is a lock per key, for as long as somebody wants it.
type keyLocks struct {
	mu sync.Mutex
	m  map[string]*keyLock
}

type keyLock struct {
	held  chan struct{} // full while the lock is held
	users int
}

func newKeyLocks() *keyLocks { return &keyLocks{m: map[string]*keyLock{}} }

// lock waits for the key's lock, or for the end of ctx.
func (k *keyLocks) lock(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	l := k.m[key]
	if l == nil {
		l = &keyLock{held: make(chan struct{}, 1)}
		k.m[key] = l
	}
	l.users++
	k.mu.Unlock()
	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.m, key)
		}
	}
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, cancelled(ctx)
	}
}
