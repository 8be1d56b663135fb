package criu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"cairn/criu/internal/frame"
)

// DumpOptions say how a tree is dumped.
type DumpOptions struct {
	// LeaveRunning lets the tree run on after the dump; without it is ended.
	LeaveRunning bool
	// Stopped is called once everything is dumped, while the tree stands still: the files
	// belong to the same instant as the memory. Its error makes the tree run on, and is
	// returned. nil is nothing to do.
	Stopped func(context.Context) error
	// Complete is called after Stopped, and only without LeaveRunning, once the images are
	// all that a restore takes, with what will be DumpStats.Files: the tree still stands
	// there, so nothing is lost whatever happens. Its error makes the tree run on, and is
	// returned. nil is nothing to do.
	Complete func(context.Context, []File) error
	// Parent is the directory of the former images of this tree, relative to this one:
	// pages that have not changed since are not written again. Only with
	// Features.Incremental; "" dumps everything.
	Parent string
	// Track lets the kernel note from now on what changes, for a dump with this one as the
	// parent. Only with Features.Incremental.
	Track bool
}

// DumpStats are the figures of a dump.
type DumpStats struct {
	Root      int // pid inside of the root
	Processes int
	Threads   int
	Pages     int64 // written, of 4096 bytes
	Skipped   int64 // pages that the parent has

	Start  time.Duration // until CRIU ran in the container; the tree runs meanwhile
	Freeze time.Duration // CRIU's time to stop the tree
	Frozen time.Duration // from then until it ran on, Stopped included
	Memory time.Duration // CRIU's time for the memory, in Frozen
	Write  time.Duration // CRIU's time to write pages, in Memory
	Wait   time.Duration // of Stopped, in Frozen
	Total  time.Duration

	// Files are the files below Options.External that the tree has open. They must be
	// there for a restore, whatever their size by then.
	Files []File
}

// File is a file that a dumped process has open.
type File struct {
	Path string // absolute, inside
	Size int64  // bytes, at the dump
}

// PrepareDump starts CRIU in the container and lets it wait, so that a later Dump stops
// the tree at once. images is an empty directory of the host's, owned by its root.
func (c *CRIU) PrepareDump(ctx context.Context, t Target, images *os.File) (*Prepared, error) {
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	if t.Root == 0 {
		root, err := findRoot(t.PID)
		if err != nil {
			return nil, err
		}
		t.Root = root
	}
	cool := warmLocks()
	p, err := c.prepare(ctx, frame.OpDump, t, images)
	if err != nil {
		cool()
		return nil, err
	}
	p.cool = cool
	return p, nil
}

// Dump dumps the tree below the stem of the container. On an error the tree runs on; what
// is in images then is worth nothing. Codes: CodeUnsupported, CodeNoSpace, CodeTimeout,
// CodeGone, CodeInterrupted, CodeFailed.
func (c *CRIU) Dump(ctx context.Context, t Target, images *os.File, o DumpOptions) (DumpStats, error) {
	p, err := c.PrepareDump(ctx, t, images)
	if err != nil {
		return DumpStats{}, err
	}
	return p.Dump(ctx, o)
}

// Dump is CRIU.Dump for a prepared one.
func (p *Prepared) Dump(ctx context.Context, o DumpOptions) (DumpStats, error) {
	defer p.close()
	c := p.c
	if err := context.Cause(ctx); err != nil {
		return DumpStats{}, err
	}
	err := p.enc.Encode(frame.Request{
		Root: p.target.Root, LeaveRunning: o.LeaveRunning, Parent: o.Parent, TrackMemory: o.Track,
		LogLevel: logLevel, GhostLimit: c.o.GhostLimit, TimeoutS: uint32(max(c.o.StopTimeout.Seconds(), 1)), External: c.o.External,
	})
	if err != nil {
		return DumpStats{}, p.broken(err)
	}
	e, err := p.next(frame.Stopped)
	if err != nil {
		return DumpStats{}, err
	}
	if e.Kind != frame.Stopped {
		return DumpStats{}, p.broken(errors.New("it did not say that the tree stands still"))
	}
	waited := time.Now()
	err = context.Cause(ctx)
	if err == nil && o.Stopped != nil {
		err = o.Stopped(ctx)
	}
	if err == nil && !o.LeaveRunning && o.Complete != nil {
		err = o.Complete(ctx, files(e.Files))
	}
	complete := e.Files
	wait := time.Since(waited)
	if sendErr := p.enc.Encode(frame.Reply{Go: err == nil}); err == nil && sendErr != nil {
		err = p.broken(sendErr)
	}
	if err != nil {
		// It says that it gave up, once the tree runs on.
		_, _ = p.next(frame.Done)
		return DumpStats{}, err
	}
	if e, err = p.next(frame.Done); err != nil {
		return DumpStats{}, err
	}
	c.o.Logger.Debug("dumped", "pid", p.target.PID, "marks", e.Micros)
	s := DumpStats{
		Root: p.target.Root, Processes: e.Dump.Processes, Threads: e.Dump.Threads,
		Pages: e.Dump.PagesWritten, Skipped: e.Dump.PagesSkipped,
		Start: p.started, Freeze: micros(e.Dump.FreezingUS), Frozen: micros(e.Dump.FrozenUS),
		Memory: micros(e.Dump.MemDumpUS), Write: micros(e.Dump.MemWriteUS), Wait: wait, Total: time.Since(p.begun),
	}
	if !o.LeaveRunning {
		e.Files = complete
	}
	s.Files = files(e.Files)
	return s, nil
}

func files(list []frame.File) []File {
	out := make([]File, len(list))
	for i, f := range list {
		out[i] = File(f)
	}
	return out
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// findRoot finds the stem: the child of PID 1 that runs the same program.
func findRoot(pid int) (int, error) {
	// Each thread has children of its own.
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil || len(lists) == 0 {
		return 0, &Error{Code: CodeGone, PID: 1, Message: "the sandbox has ended", Err: err}
	}
	var children []string
	for _, l := range lists {
		if text, err := os.ReadFile(l); err == nil {
			children = append(children, strings.Fields(string(text))...)
		}
	}
	return stemAmong(pid, children)
}
