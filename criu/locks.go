package criu

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// warmLocks keeps the kernel's table of file locks quick to read until stop is called. The
// first to read it waits for a grace period of RCU, about ten milliseconds, and CRIU and the
// helper both read it while the tree stands still. Who reads it soon after another does not
// wait: the kernel gives the table back to its fast path only after one more grace period.
func warmLocks() (stop func()) {
	f, err := os.Open("/proc/locks")
	if err != nil {
		return func() {} // it is slower without
	}
	const interval = 4 * time.Millisecond // shorter than any grace period
	done := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		defer f.Close()
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			if _, err := f.ReadAt(make([]byte, 1), 0); err != nil && !errors.Is(err, io.EOF) {
				return
			}
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		reader.Wait()
	})
}
