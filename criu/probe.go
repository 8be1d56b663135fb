package criu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"cairn/criu/internal/frame"

	"golang.org/x/sys/unix"
)

// Least is the oldest version of CRIU that serves: the first that dumps watches of files
// on overlay file systems.
const Least = 40300

// cacheName is CRIU's name for its cache.
const cacheName = "criu.kdat"

// Features are what CRIU and the kernel can do here.
type Features struct {
	Version     string   // of CRIU, e.g. "4.3"; "" when it does not run
	Supported   bool     // processes can be dumped and restored
	Incremental bool     // a dump can leave out pages that have not changed since another
	Reasons     []string // why something is not supported, one sentence each
}

// Probe says what can be done here. It is found out once; when it could not be, it is
// tried again.
func (c *CRIU) Probe(ctx context.Context) (Features, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.features != nil {
		return *c.features, nil
	}
	f, known, err := c.probe(ctx)
	if err == nil && known {
		c.features = &f
	}
	return f, err
}

func (c *CRIU) probe(ctx context.Context) (f Features, known bool, err error) {
	if err := context.Cause(ctx); err != nil {
		return f, false, err
	}
	for _, p := range []string{c.o.Helper, c.o.Bundle.Dir + "/criu", c.o.Bundle.Dir + "/ld.so"} {
		if fi, err := os.Stat(p); err != nil || fi.Mode().Perm()&0o005 != 0o005 {
			f.Reasons = []string{fmt.Sprintf("%s is missing, or not executable by everyone", p)}
			return f, false, nil
		}
	}
	se, err := c.start(frame.Setup{Op: frame.OpProbe, Bundle: c.o.Bundle.Dir, ProbeID: c.o.ProbeID}, nil, nil, c.cache)
	if err != nil {
		return f, false, err
	}
	defer se.close()
	stop := context.AfterFunc(ctx, func() { se.control.Close() })
	defer stop()
	e, err := se.next(frame.Done)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return f, false, cause
		}
		var failure *Error
		if errors.As(err, &failure) {
			f.Reasons = []string{"CRIU does not run: " + failure.Message}
			return f, false, nil
		}
		return f, false, err
	}
	if e.Probe == nil {
		return f, false, errors.New("the probe found nothing")
	}
	// CRIU keeps it to itself; it is read by the root of any sandbox.
	if e.Probe.CacheSaved {
		if err := unix.Fchmodat(int(c.cache.Fd()), cacheName, 0o644, 0); err != nil {
			return f, false, fmt.Errorf("share CRIU's cache: %w", err)
		}
	}
	return assess(*e.Probe), true, nil
}

// assess draws the conclusions.
func assess(p frame.Probe) Features {
	f := Features{Version: version(p.Version), Supported: true, Incremental: p.MemTrack}
	if p.Version < Least {
		f.Supported = false
		f.Reasons = append(f.Reasons, fmt.Sprintf("CRIU is %s, and %s is the first that serves", f.Version, version(Least)))
	}
	if !p.CheckPassed {
		f.Supported = false
		f.Reasons = append(f.Reasons, "the kernel lacks what CRIU needs: "+strings.Join(p.Complaints, "; "))
	}
	if !p.MemTrack {
		f.Reasons = append(f.Reasons, "the kernel does not track changed pages (CONFIG_MEM_SOFT_DIRTY): every dump has all memory")
	}
	if !p.CacheSaved {
		f.Reasons = append(f.Reasons, "CRIU could not keep what it knows of the kernel: each dump and restore takes some 30 ms longer")
	}
	return f
}

func version(n int) string {
	s := fmt.Sprintf("%d.%d", n/10000, n/100%100)
	if n%100 != 0 {
		s += fmt.Sprintf(".%d", n%100)
	}
	return s
}

// usable is nil when trees can be dumped and restored here.
func (c *CRIU) usable(ctx context.Context) error {
	f, err := c.Probe(ctx)
	if err != nil {
		return err
	}
	if !f.Supported {
		return &Error{Code: CodeUnavailable, Resource: "CRIU", Message: strings.Join(f.Reasons, "; ")}
	}
	return nil
}

// cached gives CRIU's cache, as a helper may see it: read-only.
func (c *CRIU) cached() (*os.File, error) {
	fd, err := unix.OpenTree(int(c.cache.Fd()), "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open CRIU's cache: %w", err)
	}
	f := os.NewFile(uintptr(fd), "criu-cache")
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		f.Close()
		return nil, fmt.Errorf("open CRIU's cache: %w", err)
	}
	return f, nil
}
