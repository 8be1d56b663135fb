package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// CaptureStats says what a capture did.
type CaptureStats struct {
	Files       int64 // entries of the upper, its root included
	Linked      int64 // files shared with the previous capture
	BytesCopied int64 // what was written; 0 for what a reflink shares
	// Late is how many entries Finish found new or changed, or could not
	// tell: what it copied or compared while the processes stood still.
	Late int64
	// Unchanged: the upper is what it was at the previous capture. No layer
	// is made.
	Unchanged bool
}

// Capture is a copy in the making of an upper that is attached and stays so.
// It is not safe for concurrent use.
type Capture struct {
	pool     *Pool
	upper    string
	src      *os.File
	prev     *os.File // the previous capture, or nil
	old      index    // of the previous capture
	stage    *stage
	out      *os.File // the stage's files
	aside    *os.File // what is kept beside them until Commit
	asides   int      // for names there
	copier   copier
	root     *node
	shared   map[uint64]*inode // files with several links, by the upper's inode
	step     clockStep
	tracked  bool // see Features.tracksMappedWrites
	finished bool
	stats    CaptureStats

	// Of the present pass:
	ctx     context.Context
	live    bool
	limit   unix.Timespec   // what changed before it shows every later change
	seen    map[uint64]bool // directories that a live pass has been to
	changed int64           // entries that are not those of the previous capture
}

const (
	asideDir = "aside"
	// maxRounds is how often the upper is copied while it is in use; another
	// round pays if the one before took long.
	maxRounds = 3
	longRound = 200 * time.Millisecond
)

// Capture does all steps of a capture of an upper that nobody writes to
// meanwhile: StartCapture without a round while it is in use, Finish, Commit.
// Errors: those of StartCapture.
func (p *Pool) Capture(ctx context.Context, upper, dst, previous string) (CaptureStats, error) {
	c, err := p.newCapture(ctx, upper, dst, previous)
	if err != nil {
		return CaptureStats{}, err
	}
	defer c.Close()
	if _, err := c.Finish(ctx); err != nil {
		return CaptureStats{}, err
	}
	return c.Commit(ctx)
}

// StartCapture begins to copy an upper that is attached, and stays so, into
// the new layer dst. Processes may write to it: what they do during the copy
// or afterwards is made up for by Finish, so that they have to stand still
// only for that. previous is the last capture of the same upper, or "": files
// that did not change since are hard-linked to it, and if nothing did, no
// layer is made. It must stay in the pool until Commit.
//
// The caller closes the capture. Errors: ErrNotFound, ErrExists; the pool is
// as before on an error.
func (p *Pool) StartCapture(ctx context.Context, upper, dst, previous string) (*Capture, error) {
	c, err := p.newCapture(ctx, upper, dst, previous)
	if err != nil {
		return nil, err
	}
	for range maxRounds {
		start := time.Now()
		if err := c.pass(ctx, true); err != nil {
			c.Close()
			return nil, err
		}
		if time.Since(start) < longRound {
			break
		}
	}
	return c, nil
}

func (p *Pool) newCapture(ctx context.Context, upper, dst, previous string) (_ *Capture, err error) {
	if err := checkID(dst); err != nil {
		return nil, err
	}
	c := &Capture{
		pool: p, upper: upper, copier: copier{reflink: p.features.Reflink}, tracked: p.features.tracksMappedWrites(),
		root: &node{name: ".", dir: &dirNode{}}, shared: map[uint64]*inode{},
	}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if c.step, err = newClockStep(); err != nil {
		return nil, err
	}
	if c.src, err = p.openLayer(upper); err != nil {
		return nil, err
	}
	if previous != "" {
		if c.prev, err = p.openLayer(previous); err != nil {
			return nil, err
		}
		// Without a usable index everything is copied.
		if i, err := readIndex(p.layer(previous, indexFile)); err == nil && i.upper == upper {
			c.old = i
		} else if err != nil && !errors.Is(err, os.ErrNotExist) {
			p.log.Warn("overlay: index of a capture is unusable", "layer", previous, "err", err)
		}
	}
	if c.stage, err = p.newStage(dst); err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(c.stage.dir, asideDir), 0o700); err != nil {
		return nil, fmt.Errorf("overlay: capture %s: %w", upper, err)
	}
	if c.out, err = openDir(unix.AT_FDCWD, filepath.Join(c.stage.dir, filesDir)); err != nil {
		return nil, err
	}
	c.root.staged = true
	c.aside, err = openDir(unix.AT_FDCWD, filepath.Join(c.stage.dir, asideDir))
	return c, err
}

// Finish makes the copy what the upper is. The caller has frozen every
// process that could write to it, and may let them go on afterwards.
// unchanged says that the upper is what it was at the previous capture.
func (c *Capture) Finish(ctx context.Context) (unchanged bool, err error) {
	if err := c.pass(ctx, false); err != nil {
		return false, err
	}
	c.finished = true
	c.stats.Unchanged = c.changed == 0 && int64(len(c.old.entries)) == c.stats.Files
	return c.stats.Unchanged, nil
}

// Commit adds what is the same in the previous capture and moves the layer
// into the pool, unless nothing has changed. It comes after Finish and needs
// nothing of the upper any more.
func (c *Capture) Commit(ctx context.Context) (CaptureStats, error) {
	if !c.finished {
		return CaptureStats{}, errors.New("overlay: capture committed before it was finished")
	}
	if c.stats.Unchanged {
		return CaptureStats{Files: c.stats.Files, Late: c.stats.Late, Unchanged: true}, nil
	}
	next := index{upper: c.upper, entries: make(map[string]indexEntry, c.stats.Files)}
	if err := c.complete(ctx, next); err != nil {
		return CaptureStats{}, fmt.Errorf("overlay: capture %s: %w", c.upper, err)
	}
	if err := os.RemoveAll(filepath.Join(c.stage.dir, asideDir)); err != nil {
		return CaptureStats{}, fmt.Errorf("overlay: capture %s: %w", c.upper, err)
	}
	if err := writeIndex(filepath.Join(c.stage.dir, indexFile), next); err != nil {
		return CaptureStats{}, err
	}
	if err := c.stage.commit(); err != nil {
		return CaptureStats{}, err
	}
	return c.stats, nil
}

// Close removes what was copied, unless it was committed. It may be called
// twice.
func (c *Capture) Close() error {
	for _, f := range []*os.File{c.src, c.prev, c.out, c.aside} {
		if f != nil {
			f.Close()
		}
	}
	if c.stage != nil {
		c.stage.drop()
	}
	return nil
}
