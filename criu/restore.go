package criu

import (
	"context"
	"errors"
	"os"
	"time"

	"cairn/criu/internal/frame"
)

// RestoreOptions say how a tree is restored.
type RestoreOptions struct {
	// Restored is called once the tree is there, before any of it runs. Its error ends the
	// tree, and is returned. nil is nothing to do.
	Restored func(ctx context.Context, rootPID int) error
}

// RestoreStats are the figures of a restore.
type RestoreStats struct {
	RootPID int           // pid inside of the root
	Start   time.Duration // until CRIU ran in the container
	Build   time.Duration // from then until the tree was there
	Wait    time.Duration // of Restored
	Total   time.Duration
}

// StartRestore starts what can be started for a restore while the container's processes
// still run: Enter is to follow once they have ended and the root file system is the one
// that they are restored to.
func (c *CRIU) StartRestore(ctx context.Context, t Target, images *os.File) (*Prepared, error) {
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	return c.prepare(ctx, frame.OpRestore, t, images)
}

// Enter starts CRIU in the container of a StartRestore. Nothing but PID 1 may run in it
// (see Clear), and PID 1 must have been told to start no stem. From here on nothing may be
// mounted or moved in it until the restore is done: CRIU goes on loading from InsideBundle.
func (p *Prepared) Enter() error {
	if err := p.enc.Encode(frame.Reply{Go: true}); err != nil {
		return p.broken(err)
	}
	return nil
}

// PrepareRestore is StartRestore and Enter.
func (c *CRIU) PrepareRestore(ctx context.Context, t Target, images *os.File) (*Prepared, error) {
	p, err := c.StartRestore(ctx, t, images)
	if err != nil {
		return nil, err
	}
	if err := p.Enter(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Restore restores the tree as children of PID 1, with their former pids, in the control
// groups, the user namespace and all other namespaces of the container. The images must be
// what Digest was taken of right after the dump. On an error nothing is left in the
// container but PID 1. A CPU that lacks what the one of the dump had is CodeUnsupported.
// Codes: CodeImages, CodeRights, CodeUnsupported, CodeGone, CodeInterrupted, CodeFailed.
func (c *CRIU) Restore(ctx context.Context, t Target, images *os.File, o RestoreOptions) (RestoreStats, error) {
	p, err := c.PrepareRestore(ctx, t, images)
	if err != nil {
		return RestoreStats{}, err
	}
	return p.Restore(ctx, o)
}

// Restore is CRIU.Restore for a prepared one.
func (p *Prepared) Restore(ctx context.Context, o RestoreOptions) (s RestoreStats, err error) {
	defer func() {
		p.close()
		var e *Error
		if errors.As(err, &e) && e.Code == CodeInterrupted {
			// The helper could not clean up after itself.
			clear := p.c.Clear(context.WithoutCancel(ctx), p.target)
			err = errors.Join(err, clear)
		}
	}()
	if err := context.Cause(ctx); err != nil {
		return s, err
	}
	begun := time.Now()
	if err := p.enc.Encode(frame.Request{LogLevel: logLevel, GhostLimit: p.c.o.GhostLimit}); err != nil {
		return s, p.broken(err)
	}
	e, err := p.next(frame.Restored)
	if err != nil {
		return s, err
	}
	if e.Kind != frame.Restored {
		return s, p.broken(errors.New("it did not say that the tree is there"))
	}
	s.RootPID, s.Start, s.Build = e.Root, p.started, time.Since(begun)
	waited := time.Now()
	err = context.Cause(ctx)
	if err == nil && o.Restored != nil {
		err = o.Restored(ctx, e.Root)
	}
	s.Wait = time.Since(waited)
	if sendErr := p.enc.Encode(frame.Reply{Go: err == nil}); err == nil && sendErr != nil {
		err = p.broken(sendErr)
	}
	if err != nil {
		// It says so when the tree is gone.
		_, _ = p.next(frame.Done)
		return s, err
	}
	if e, err = p.next(frame.Done); err != nil {
		return s, err
	}
	p.c.o.Logger.Debug("restored", "pid", p.target.PID, "marks", e.Micros)
	s.Total = time.Since(p.begun)
	return s, nil
}
