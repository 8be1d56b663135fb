package criu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"cairn/criu/internal/frame"

	"golang.org/x/sys/unix"
)

// Bundle is CRIU with its loader and its libraries, in one directory of the host, which
// sandboxes see, read-only, as InsideBundle.
type Bundle struct{ Dir string }

// InsideBundle is where sandboxes see the bundle.
const InsideBundle = "/.cairn/criu"

// Defaults of Options.
const (
	defaultGhostLimit  = 256 << 20
	defaultStopTimeout = 10 * time.Second
	// answerTimeout bounds the wait for a helper's next word, endTimeout that for its end.
	answerTimeout = 5 * time.Minute
	endTimeout    = time.Minute
)

// Options configure a CRIU.
type Options struct {
	Bundle Bundle
	Helper string // host path of cairn-criu
	// External are directories of the host's that sandboxes see, absolute, inside. Files
	// there go on changing after a dump: a restored process has them open whatever their
	// size. nil means /run/cairn.
	External []string
	// GhostLimit bounds, in bytes, one open file that was deleted, which goes into the
	// images. 0 is 256 MiB.
	GhostLimit uint32
	// StopTimeout is how long the processes may take to stand still. 0 is 10 s.
	StopTimeout time.Duration
	// ProbeID is a host user and group id of nobody's, which the probe runs as. 0 is 2^31-2.
	ProbeID int
	Logger  *slog.Logger
}

// CRIU dumps and restores process trees. It is safe for concurrent use.
type CRIU struct {
	o     Options
	cache *os.File // what CRIU found out about the kernel; nil without

	mu       sync.Mutex
	features *Features
}

// New makes a CRIU. What CRIU and the kernel can do is looked at when it is first needed, or
// by Probe.
func New(o Options) (*CRIU, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.External == nil {
		o.External = []string{"/run/cairn"}
	}
	if o.GhostLimit == 0 {
		o.GhostLimit = defaultGhostLimit
	}
	if o.StopTimeout == 0 {
		o.StopTimeout = defaultStopTimeout
	}
	if o.ProbeID == 0 {
		o.ProbeID = 1<<31 - 2
	}
	for _, p := range []string{o.Bundle.Dir, o.Helper} {
		if !filepath.IsAbs(p) {
			return nil, fmt.Errorf("path %q must be absolute", p)
		}
	}
	c := &CRIU{o: o}
	if err := c.openCache(); err != nil {
		return nil, err
	}
	return c, nil
}

// Close gives up what is held.
func (c *CRIU) Close() error { return c.cache.Close() }

// openCache makes the file system for CRIU's cache. CRIU keeps one on tmpfs only.
func (c *CRIU) openCache() error {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("make a tmpfs: %w", err)
	}
	defer unix.Close(fs)
	id := strconv.Itoa(c.o.ProbeID)
	for _, kv := range [][2]string{{"size", "1m"}, {"mode", "0755"}, {"uid", id}, {"gid", id}} {
		if err := unix.FsconfigSetString(fs, kv[0], kv[1]); err != nil {
			return fmt.Errorf("make a tmpfs: %s: %w", kv[0], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("make a tmpfs: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	c.cache = os.NewFile(uintptr(fd), "criu-cache")
	return nil
}

// Target is the container that is dumped from or restored into.
type Target struct {
	PID int // of its PID 1, on the host
	// Root is the pid, inside, of the root of the tree: the stem. Only for dumps; 0 looks
	// for it, the only child of PID 1 that runs its program.
	Root int
}

// session is a running helper.
type session struct {
	c       *CRIU
	op      frame.Op
	cmd     *exec.Cmd
	control *os.File
	enc     *json.Encoder
	dec     *json.Decoder
	log     *logTail
	ended   chan struct{}
	err     error // of the process; set when ended is closed
}

// start starts a helper with the files it needs, given in the order of frame.FD*, nil for
// none. It closes none of them.
func (c *CRIU) start(s frame.Setup, files ...*os.File) (*session, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "control"), os.NewFile(uintptr(pair[1]), "control")
	defer theirs.Close()
	// A helper outlives the daemon: it ends in an orderly way when its socket does.
	cmd := exec.Command(c.o.Helper)
	cmd.Args = []string{"cairn-criu"}
	cmd.Env = []string{"GOMAXPROCS=2", "GOGC=off", "GOMEMLIMIT=256MiB"}
	cmd.Dir = "/"
	se := &session{c: c, op: s.Op, cmd: cmd, control: ours, log: &logTail{}, ended: make(chan struct{})}
	cmd.Stderr = se.log
	cmd.ExtraFiles = []*os.File{theirs}
	null, err := os.Open(os.DevNull)
	if err != nil {
		ours.Close()
		return nil, err
	}
	defer null.Close()
	for _, f := range files {
		if f == nil {
			f = null
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	cmd.SysProcAttr = sysProcAttr()
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil, &Error{Code: CodeUnavailable, Resource: c.o.Helper, Message: "the helper can't be started", Err: err}
	}
	go func() {
		se.err = cmd.Wait()
		close(se.ended)
	}()
	se.enc, se.dec = json.NewEncoder(ours), json.NewDecoder(ours)
	if err := se.enc.Encode(s); err != nil {
		return nil, se.broken(err)
	}
	return se, nil
}

// next reads the next event; a failure that it tells is the error.
func (se *session) next(want frame.Kind) (frame.Event, error) {
	var e frame.Event
	// A socket always takes a deadline.
	_ = se.control.SetReadDeadline(time.Now().Add(answerTimeout))
	if err := se.dec.Decode(&e); err != nil {
		return e, se.broken(err)
	}
	if e.Failure != nil {
		for _, l := range e.Failure.Log {
			se.c.o.Logger.Warn("criu", "op", string(se.op), "line", l)
		}
		return e, fromFailure(e.Failure)
	}
	if e.Kind != want && e.Kind != frame.Done {
		return e, se.broken(fmt.Errorf("%s in the place of %s", e.Kind, want))
	}
	return e, nil
}

// broken is the error for a helper that did not keep to the protocol: it died.
func (se *session) broken(err error) error {
	se.close()
	return &Error{Code: CodeInterrupted, Message: "the helper ended early: " + se.log.String(), Err: errors.Join(err, se.err)}
}

// close ends the helper. It waits for it, as CRIU must not be ended in the middle, but
// not for ever.
func (se *session) close() {
	se.control.Close()
	select {
	case <-se.ended:
	case <-time.After(endTimeout):
		_ = se.cmd.Process.Kill()
		<-se.ended
	}
}

// Prepared is a CRIU that was started in a container and waits. Each serves once.
type Prepared struct {
	*session
	target  Target
	begun   time.Time
	started time.Duration
	cool    func() // ends warmLocks; dumps only
}

// prepare starts a helper for the target.
func (c *CRIU) prepare(ctx context.Context, op frame.Op, t Target, images *os.File) (_ *Prepared, err error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	begun := time.Now()
	pidFD, err := unix.PidfdOpen(t.PID, 0)
	if err != nil {
		return nil, &Error{Code: CodeGone, PID: 1, Message: "the sandbox has ended", Err: err}
	}
	var open []*os.File
	defer func() {
		for _, f := range open {
			f.Close()
		}
	}()
	keep := func(f *os.File) *os.File { open = append(open, f); return f }
	pid := keep(os.NewFile(uintptr(pidFD), "pidfd"))
	setup := frame.Setup{Op: op, PID: t.PID, Bundle: InsideBundle}
	var mapped, lastPID, cache *os.File
	if images != nil {
		if mapped, err = mapImages(t.PID, images, op == frame.OpRestore); err != nil {
			return nil, err
		}
		keep(mapped)
		if cache, err = c.cached(); err != nil {
			return nil, err
		}
		keep(cache)
	}
	files := []*os.File{pid, mapped, cache, nil, images}
	if op == frame.OpRestore {
		if lastPID, err = os.OpenFile("/proc/sys/kernel/ns_last_pid", os.O_WRONLY, 0); err != nil {
			return nil, fmt.Errorf("choose pids: %w", err)
		}
		files[3] = keep(lastPID)
		groups, err := openCgroups(t.PID)
		if err != nil {
			return nil, err
		}
		for _, g := range groups {
			files = append(files, keep(g))
		}
		setup.Cgroups = len(groups)
	}
	se, err := c.start(setup, files...)
	if err != nil {
		return nil, err
	}
	p := &Prepared{session: se, target: t, begun: begun}
	if images != nil {
		if _, err := se.next(frame.Ready); err != nil {
			se.close()
			return nil, err
		}
	}
	p.started = time.Since(begun)
	return p, nil
}

// Close ends a Prepared that did not serve.
func (p *Prepared) Close() error {
	p.close()
	return nil
}

func (p *Prepared) close() {
	if p.cool != nil {
		p.cool()
	}
	p.session.close()
}

// Clear ends every process of the container but PID 1, and its TCP connections, and returns
// when they are gone.
// PID 1 must have been told to start no stem.
func (c *CRIU) Clear(ctx context.Context, t Target) error {
	p, err := c.prepare(ctx, frame.OpClear, t, nil)
	if err != nil {
		return err
	}
	defer p.close()
	if _, err = p.next(frame.Done); err != nil {
		return err
	}
	return closeConnections(t.PID)
}
