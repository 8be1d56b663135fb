package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Kill kills every process of the group but those that spare returns, and
// returns when only these are left; the group is thawed then. spare is called
// while everything stands still, with all processes. A group that forks without
// end does not escape: what is frozen cannot fork, and what was sent SIGKILL
// dies before it runs again. nil spares nothing. A group that is gone is killed.
func (g *Group) Kill(ctx context.Context, spare func(pids []int) []int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	pause := 50 * time.Microsecond
	for {
		left, err := g.killOnce(ctx, spare)
		if err != nil && errors.Is(err, ErrGone) {
			return nil
		}
		if err != nil || left == 0 {
			return err
		}
		// They are dying. Look again when they have had a moment to.
		for deadline := time.Now().Add(20 * time.Millisecond); time.Now().Before(deadline); {
			time.Sleep(pause)
			pause = min(2*pause, 2*time.Millisecond)
			pids, err := g.Processes()
			if errors.Is(err, ErrGone) {
				return nil
			}
			if err != nil {
				return err
			}
			if spare == nil && len(pids) == 0 {
				return nil
			}
			if spare != nil && len(pids) <= len(spare(pids)) {
				break // to be confirmed while frozen
			}
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("kill a cgroup: %d processes left: %w", left, context.Cause(ctx))
		}
	}
}

// KillFrozen freezes the group, sends SIGKILL to all but the spared processes, and thaws
// it: nobody escapes but children that the spared ones make meanwhile. It does not wait
// until they are gone. The error is ErrNotFrozen when somebody could not be frozen, and
// may have escaped.
func (g *Group) KillFrozen(ctx context.Context, spare func(pids []int) []int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.freeze(ctx); err != nil {
		return err
	}
	_, err := g.killOnce(ctx, spare)
	return err
}

// killOnce sends SIGKILL to all but the spared ones, and says how many there were.
func (g *Group) killOnce(ctx context.Context, spare func([]int) []int) (int, error) {
	if err := g.freeze(ctx); err != nil && !errors.Is(err, ErrNotFrozen) {
		return 0, err // not frozen: kill what is there all the same
	}
	pids, err := g.Processes()
	if err == nil {
		var keep []int
		if spare != nil {
			keep = spare(pids)
		}
		pids = slices.DeleteFunc(pids, func(p int) bool { return slices.Contains(keep, p) || p == os.Getpid() })
		for _, p := range pids {
			if e := unix.Kill(p, unix.SIGKILL); e != nil && !errors.Is(e, unix.ESRCH) {
				err = errors.Join(err, fmt.Errorf("kill %d: %w", p, e))
			}
		}
	}
	return len(pids), errors.Join(err, g.write(false))
}
