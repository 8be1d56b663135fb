package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
)

// ErrNotFrozen means that some task of the group could not be stopped in time,
// because it sleeps in the kernel. The group runs on.
var ErrNotFrozen = errors.New("a task of the cgroup cannot be stopped")

// freezeTimeout bounds Freeze for callers without a deadline of their own.
const freezeTimeout = 5 * time.Second

// Freeze stops every task of the group and returns when all of them stand
// still. Freezing what is frozen does nothing.
func (g *Group) Freeze(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.freeze(ctx)
}

// Thaw lets every task run again.
func (g *Group) Thaw(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.write(false)
}

// Frozen says whether every task stands still.
func (g *Group) Frozen() (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.frozen()
}

func (g *Group) freeze(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := g.write(true); err != nil {
		return err
	}
	start := time.Now()
	again, pause := start.Add(time.Millisecond), 20*time.Microsecond
	for n := 0; ; n++ {
		done, err := g.frozen()
		if err == nil && done {
			return nil
		}
		if err == nil && ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", ErrNotFrozen, context.Cause(ctx))
		}
		if err != nil {
			return errors.Join(err, g.write(false))
		}
		// Most groups stand still within microseconds: look often at first.
		if n < 50 {
			runtime.Gosched()
			continue
		}
		now := time.Now()
		// Version 1 can miss a task that was being born: asking again reaches it.
		if g.h.version == V1 && now.After(again) {
			again = now.Add(now.Sub(start))
			if err := g.write(true); err != nil {
				return errors.Join(err, g.write(false))
			}
		}
		time.Sleep(pause)
		pause = min(2*pause, time.Millisecond)
	}
}

func (g *Group) write(freeze bool) error {
	if g.state == nil {
		return os.ErrClosed
	}
	word := map[bool]string{true: "FROZEN", false: "THAWED"}
	if g.h.version == V2 {
		word = map[bool]string{true: "1", false: "0"}
	}
	if _, err := g.state.WriteAt([]byte(word[freeze]), 0); err != nil {
		return fmt.Errorf("write %s: %w", word[freeze], gone(err))
	}
	return nil
}

func (g *Group) frozen() (bool, error) {
	if g.event == nil {
		return false, os.ErrClosed
	}
	var buf [256]byte
	b, err := readAt(g.event, buf[:])
	if err != nil {
		return false, fmt.Errorf("read the freezer: %w", gone(err))
	}
	if g.h.version == V2 {
		return bytes.Contains(b, []byte("frozen 1")), nil
	}
	return bytes.Equal(bytes.TrimSpace(b), []byte("FROZEN")), nil
}
