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
	// Unchanged: the upper is what it was at the previous capture. No layer
	// was made.
	Unchanged bool
}

// racyWindow is how close to a capture a change may have been for a later
// one to get the same change time: the file system's clock ticks at most
// every 10 ms.
const racyWindow = 40 * time.Millisecond

// Capture copies an upper that is attached and stays so into the new layer
// dst. The caller has frozen every process that could write to it. previous
// is the last capture of the same upper, or "": files that did not change
// since are hard-linked to it, and if nothing did, no layer is made.
//
// A file is taken to be unchanged when inode, change time and size are those
// of the previous capture, unless it changed just before that capture, or
// was open for writing with unwritten pages then: a process may go on writing
// through a shared mapping without changing the file's times. Such files are
// compared or copied.
//
// Errors: ErrNotFound, ErrExists; the pool is as before on an error.
func (p *Pool) Capture(ctx context.Context, upper, dst, previous string) (CaptureStats, error) {
	var stats CaptureStats
	if err := checkID(dst); err != nil {
		return stats, err
	}
	src, err := p.openLayer(upper)
	if err != nil {
		return stats, err
	}
	defer src.Close()
	var prev *os.File
	old := index{}
	if previous != "" {
		if prev, err = p.openLayer(previous); err != nil {
			return stats, err
		}
		defer prev.Close()
		// Without a usable index everything is copied.
		if i, err := readIndex(p.layer(previous, indexFile)); err == nil && i.upper == upper {
			old = i
		} else if err != nil && !errors.Is(err, os.ErrNotExist) {
			p.log.Warn("overlay: index of a capture is unusable", "layer", previous, "err", err)
		}
	}
	if n, err := old.unchanged(ctx, src); err != nil {
		return stats, fmt.Errorf("overlay: capture %s: %w", upper, err)
	} else if n > 0 {
		return CaptureStats{Files: n, Unchanged: true}, nil
	}
	err = p.stage(dst, func(dir string) error {
		out, err := openDir(unix.AT_FDCWD, filepath.Join(dir, filesDir))
		if err != nil {
			return err
		}
		defer out.Close()
		c := &capture{
			ctx: ctx, copier: copier{reflink: p.features.Reflink}, old: old,
			next:  index{upper: upper, entries: map[string]indexEntry{}},
			limit: time.Now().Add(-racyWindow), made: map[fileID]madeFile{}, root: out,
		}
		if err := c.dir(src, out, prev, "."); err != nil {
			return fmt.Errorf("overlay: capture %s: %w", upper, err)
		}
		stats = c.stats
		if c.changed == 0 && len(old.entries) == int(stats.Files) {
			return errUnchanged
		}
		return writeIndex(filepath.Join(dir, indexFile), c.next)
	})
	if errors.Is(err, errUnchanged) {
		return CaptureStats{Files: stats.Files, Unchanged: true}, nil
	}
	return stats, err
}

// unchanged compares a tree with the index alone. It returns the number of
// entries, or 0 if something differs or may differ.
func (i index) unchanged(ctx context.Context, src *os.File) (int64, error) {
	var n int64
	err := walk(ctx, src, func(_ *os.File, _, path string, st *unix.Stat_t) error {
		n++
		if e, ok := i.entries[path]; !ok || !e.settled || !e.is(st) {
			return errChanged
		}
		return nil
	})
	if errors.Is(err, errChanged) || err == nil && n != int64(len(i.entries)) {
		return 0, nil
	}
	return n, err
}

var errChanged = errors.New("changed")

var errUnchanged = errors.New("unchanged")

type capture struct {
	ctx     context.Context
	copier  copier
	old     index
	next    index
	limit   time.Time // changes before it have a change time of their own
	stats   CaptureStats
	changed int64
	made    map[fileID]madeFile // files with several links
	root    *os.File
}

type madeFile struct{ path string }

// dir copies the directory src, its root metadata included, into dst, which
// is empty. prev is the same directory in the previous capture, or nil.
func (c *capture) dir(src, dst, prev *os.File, path string) error {
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &st); err != nil {
		return err
	}
	c.stats.Files++
	same, err := c.same(src, ".", prev, ".", path, &st)
	if err != nil {
		return err
	}
	if !same {
		c.changed++
	}
	c.next.add(path, &st, c.settled(&st))
	names, err := readNames(src)
	if err != nil {
		return err
	}
	prefix := path + "/"
	if path == "." {
		prefix = ""
	}
	for _, name := range names {
		if err := c.entry(src, dst, prev, name, prefix+name); err != nil {
			return fmt.Errorf("%q: %w", prefix+name, err)
		}
	}
	return copyMetadata(src, ".", dst, ".", &st)
}

func (c *capture) entry(src, dst, prev *os.File, name, path string) error {
	st, err := lstatAt(int(src.Fd()), name)
	if err != nil {
		return err
	}
	if isDir(&st) {
		return c.subdir(src, dst, prev, name, path)
	}
	c.stats.Files++
	// Whiteouts share an inode because overlayfs saves some, not as links.
	shared := st.Nlink > 1 && !isWhiteout(&st)
	if m, ok := c.made[idOf(&st)]; ok && shared {
		if e, ok := c.old.entries[path]; !ok || e.ino != st.Ino {
			c.changed++
		}
		c.next.add(path, &st, c.next.entries[m.path].settled)
		return unix.Linkat(int(c.root.Fd()), m.path, int(dst.Fd()), name, 0)
	}
	same, err := c.same(src, name, prev, name, path, &st)
	if err != nil {
		return err
	}
	settled := c.settled(&st)
	if isFile(&st) && settled {
		if settled, err = noHiddenWriter(src, name); err != nil {
			return err
		}
	}
	c.next.add(path, &st, settled)
	if shared {
		c.made[idOf(&st)] = madeFile{path}
	}
	if !same {
		c.changed++
	} else if isFile(&st) {
		err := unix.Linkat(int(prev.Fd()), name, int(dst.Fd()), name, 0)
		if err == nil {
			c.stats.Linked++
			return nil
		}
		if !errors.Is(err, unix.EMLINK) && !errors.Is(err, unix.EXDEV) {
			return err
		}
	}
	n, err := c.copier.entry(src, name, dst, name, &st)
	c.stats.BytesCopied += n
	return err
}

func (c *capture) subdir(src, dst, prev *os.File, name, path string) error {
	s, err := openDir(int(src.Fd()), name)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := unix.Mkdirat(int(dst.Fd()), name, 0o700); err != nil {
		return err
	}
	d, err := openDir(int(dst.Fd()), name)
	if err != nil {
		return err
	}
	defer d.Close()
	if prev == nil {
		return c.dir(s, d, nil, path)
	}
	o, err := openDir(int(prev.Fd()), name)
	if err != nil {
		return c.dir(s, d, nil, path)
	}
	defer o.Close()
	return c.dir(s, d, o, path)
}

// settled says whether every later change gives the entry another change
// time.
func (c *capture) settled(st *unix.Stat_t) bool {
	return time.Unix(st.Ctim.Sec, st.Ctim.Nsec).Before(c.limit)
}

// same says whether an entry is what it was at the previous capture.
func (c *capture) same(src *os.File, name string, prev *os.File, prevName, path string, st *unix.Stat_t) (bool, error) {
	e, ok := c.old.entries[path]
	if !ok || prev == nil || e.ino != st.Ino || e.mode != st.Mode {
		return false, nil
	}
	if e.settled && e.is(st) {
		return true, nil
	}
	pst, err := lstatAt(int(prev.Fd()), prevName)
	if err != nil {
		return false, nil //nolint:nilerr // one that cannot be looked at counts as changed
	}
	if pst.Mtim != st.Mtim {
		return false, nil
	}
	d, err := compare(src, name, st, prev, prevName, &pst, true)
	return err == nil && d == 0, err
}

// noHiddenWriter says whether nobody can change the file without changing
// its times: nobody has it open for writing, or if so its pages are clean,
// in which case the next write to a mapping faults.
func noHiddenWriter(dir *os.File, name string) (bool, error) {
	f, err := openFile(int(dir.Fd()), name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	// A read lease is granted only where there is no writer.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err == nil {
		return true, nil
	}
	var cs unix.Cachestat_t
	if err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &cs, 0); err != nil {
		return false, nil
	}
	return cs.Dirty == 0 && cs.Writeback == 0, nil
}
