package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"cairn/api/client"
	"cairn/api/types"
)

const (
	startTimeout = time.Minute
	stopTimeout  = time.Minute
	sweepTimeout = 5 * time.Minute
	poll         = 20 * time.Millisecond
)

// Options say what to run and where.
type Options struct {
	Bin    string    // directory of cairnd and what it needs
	Root   string    // state directory, absolute and short; made when it is not there
	Pool   string    // directory of the layers, if Config names one outside of Root
	Config string    // configuration file's text
	Log    io.Writer // the daemon's log; nil: ROOT/cairnd.log
}

// Cairn is a running daemon.
type Cairn struct {
	*client.Client
	o     Options
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended, with exit set
	exit  error
}

// Start starts a daemon and returns when it serves. The caller must Close it, also
// after Start of one that shares its Root with a former one.
func Start(ctx context.Context, o Options) (_ *Cairn, err error) {
	if err := os.MkdirAll(o.Root, 0o711); err != nil {
		return nil, err
	}
	// Sandboxes pass it on the way to their files.
	if err := os.Chmod(o.Root, 0o711); err != nil {
		return nil, err
	}
	c := &Cairn{o: o}
	if err := c.start(ctx, o.Config); err != nil {
		return nil, errors.Join(err, c.Close(ctx))
	}
	return c, nil
}

func (c *Cairn) start(ctx context.Context, config string) error {
	file := filepath.Join(c.o.Root, "cairn.toml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}
	log := c.o.Log
	if log == nil {
		f, err := os.OpenFile(c.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		log = f
	}
	// It lives until Stop, not until ctx ends.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), filepath.Join(c.o.Bin, "cairnd"), "serve", "--root", c.o.Root, "--config", file)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.o.Root, log, log
	// A terminal's ^C is for this process alone: it has to clean up.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	c.cmd, c.ended = cmd, ended
	go func() {
		c.exit = cmd.Wait()
		close(ended)
	}()
	api, err := client.Dial(client.Options{Socket: filepath.Join(c.o.Root, "run", "cairn.sock")})
	if err != nil {
		return err
	}
	c.Client = api
	return c.ready(ctx)
}

func (c *Cairn) logFile() string { return filepath.Join(c.o.Root, "cairnd.log") }

// ready waits until the daemon serves.
func (c *Cairn) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := client.Done(c.GetReady(ctx))
		if err == nil {
			return nil
		}
		select {
		case <-c.ended:
			return fmt.Errorf("cairnd ended: %w%s", c.exit, c.lastLog())
		case <-ctx.Done():
			return fmt.Errorf("cairnd does not answer: %w%s", errors.Join(ctx.Err(), err), c.lastLog())
		case <-time.After(poll):
		}
	}
}

// lastLog is the end of the daemon's log, for an error message.
func (c *Cairn) lastLog() string {
	const lines = 5
	b, err := os.ReadFile(c.logFile())
	if err != nil || len(b) == 0 {
		return ""
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return "\n" + strings.Join(all[max(0, len(all)-lines):], "\n")
}

// PID is the daemon's.
func (c *Cairn) PID() int { return c.cmd.Process.Pid }

// Root is the state directory.
func (c *Cairn) Root() string { return c.o.Root }

// Slots is the directory that has one for each container.
func (c *Cairn) Slots() string {
	if c.o.Pool != "" {
		return filepath.Join(c.o.Pool, "s")
	}
	return filepath.Join(c.o.Root, "pool", "s")
}

// Stop ends the daemon; sandboxes run on.
func (c *Cairn) Stop() error {
	if c.cmd == nil {
		return nil
	}
	if c.Client != nil {
		client.Close(c.Client)
	}
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	defer func() { c.cmd = nil }()
	select {
	case <-c.ended:
		return c.exit
	case <-time.After(stopTimeout):
		_ = c.cmd.Process.Kill()
		<-c.ended
		return fmt.Errorf("cairnd did not end within %s and was killed%s", stopTimeout, c.lastLog())
	}
}

// Restart ends the daemon and starts it with another configuration.
func (c *Cairn) Restart(ctx context.Context, config string) error {
	if err := c.Stop(); err != nil {
		return err
	}
	c.o.Config = config
	return c.start(ctx, config)
}

// Close deletes all sandboxes, ends all that runs, and removes Root (a Pool outside
// of it stays) unless something could not be ended.
func (c *Cairn) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepTimeout)
	defer cancel()
	if err := c.sweep(ctx); err != nil {
		return fmt.Errorf("clean up %s: %w", c.o.Root, err)
	}
	return os.RemoveAll(c.o.Root)
}

// sweep has the daemon remove everything: the sandboxes, and, if it left blank
// containers because it was killed, these, by starting it with none to be kept ready.
func (c *Cairn) sweep(ctx context.Context) error {
	if c.cmd != nil {
		if err := errors.Join(c.DeleteAll(ctx), c.Stop()); err != nil {
			return err
		}
	}
	if empty, err := c.noSlots(); empty || err != nil {
		return err
	}
	config := withoutPool(c.o.Config)
	if err := c.start(ctx, config); err != nil {
		return errors.Join(err, c.Stop())
	}
	if err := c.DeleteAll(ctx); err != nil {
		return errors.Join(err, c.Stop())
	}
	for {
		empty, err := c.noSlots()
		if empty || err != nil {
			return errors.Join(err, c.Stop())
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("containers are left: %w", ctx.Err()), c.Stop())
		case <-time.After(poll):
		}
	}
}

// noSlots says whether no container is left.
func (c *Cairn) noSlots() (bool, error) {
	entries, err := os.ReadDir(c.Slots())
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	return len(entries) == 0, err
}

// withoutPool is a configuration with an empty pool of blank containers.
func withoutPool(config string) string {
	before, rest, found := strings.Cut(config, "[warm]\n")
	if !found {
		return config + "\n[warm]\nnone = 0\n"
	}
	if i := strings.Index(rest, "["); i >= 0 {
		rest = rest[i:]
	} else {
		rest = ""
	}
	return before + "[warm]\nnone = 0\n" + rest
}

// DeleteAll deletes every sandbox, several at once.
func (c *Cairn) DeleteAll(ctx context.Context) error {
	list, err := client.All(func(cursor *string) ([]types.Sandbox, string, error) {
		l, err := client.Get[types.SandboxList](c.ListSandboxes(ctx, &types.ListSandboxesParams{Cursor: cursor}))
		return l.Items, l.NextCursor, err
	})
	if err != nil {
		return err
	}
	const parallel = 8
	slots, errs := make(chan struct{}, parallel), make(chan error, len(list))
	for _, s := range list {
		slots <- struct{}{}
		go func() {
			errs <- client.Done(c.DeleteSandbox(ctx, s.Id))
			<-slots
		}()
	}
	for range list {
		err = errors.Join(err, <-errs)
	}
	return err
}
