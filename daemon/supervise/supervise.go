package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// Options say what to run and where.
type Options struct {
	Dir    string // directory of everything that containerd writes; absolute
	Socket string // its API; absolute
	Binary string // containerd; its shim and runc are looked for beside it
	Logger *slog.Logger
}

// Times of the supervision.
const (
	readyTimeout = 30 * time.Second
	firstBackoff = 50 * time.Millisecond
	maxBackoff   = 10 * time.Second
	steady       = time.Minute // a run this long resets the backoff
	maxLog       = 8 << 20     // bytes of the log kept when it is started
)

// Containerd is a supervised containerd.
type Containerd struct {
	o      Options
	config string
	stop   context.CancelCauseFunc
	done   chan struct{}
	pid    atomic.Int64
	starts atomic.Int64
}

var errStopped = errors.New("stopped")

// Start stops a containerd that a former daemon left, starts one, and returns
// when it answers. It is kept running until Stop. ctx bounds the start only.
func Start(ctx context.Context, o Options) (*Containerd, error) {
	if !filepath.IsAbs(o.Dir) || !filepath.IsAbs(o.Socket) {
		return nil, fmt.Errorf("paths of containerd must be absolute: %q, %q", o.Dir, o.Socket)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if _, err := exec.LookPath(o.Binary); err != nil {
		return nil, fmt.Errorf("no containerd to run: %w", err)
	}
	config, err := o.prepare()
	if err != nil {
		return nil, fmt.Errorf("prepare containerd: %w", err)
	}
	// Before anything asks: what answers from here on is the new one.
	if _, err := stopLeftovers(ctx, config); err != nil {
		return nil, fmt.Errorf("stop a containerd that was left: %w", err)
	}
	run, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	c := &Containerd{o: o, config: config, stop: stop, done: make(chan struct{})}
	go c.run(run)
	if err := c.Ready(ctx); err != nil {
		return nil, errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
	}
	return c, nil
}

// Address is the socket of its API.
func (c *Containerd) Address() string { return c.o.Socket }

// PID is its process id, 0 while there is none.
func (c *Containerd) PID() int { return int(c.pid.Load()) }

// Starts counts how often it was started.
func (c *Containerd) Starts() int { return int(c.starts.Load()) }

// Stop ends containerd; containers run on. It returns when it has ended.
func (c *Containerd) Stop(ctx context.Context) error {
	c.stop(errStopped)
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop containerd: %w", context.Cause(ctx))
	}
}

// Ready waits until containerd answers, for at most half a minute.
func (c *Containerd) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return Ready(ctx, c.o.Socket)
}

// Ready waits until the containerd at socket answers and all of it serves.
func Ready(ctx context.Context, socket string) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	health := healthpb.NewHealthClient(conn)
	for {
		// Each try on its own: gRPC backs off for seconds once a connection failed.
		conn.ResetConnectBackoff()
		try, cancel := context.WithTimeout(ctx, time.Second)
		r, err := health.Check(try, &healthpb.HealthCheckRequest{})
		cancel()
		if err == nil && r.GetStatus() == healthpb.HealthCheckResponse_SERVING {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("its state is %s", r.GetStatus())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("containerd at %s does not answer: %w", socket, errors.Join(context.Cause(ctx), err))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// run keeps it running until ctx ends.
func (c *Containerd) run(ctx context.Context) {
	defer close(c.done)
	backoff := firstBackoff
	for {
		began := time.Now()
		err := c.once(ctx)
		if ctx.Err() != nil {
			c.o.Logger.Info("containerd stopped")
			return
		}
		if time.Since(began) > steady {
			backoff = firstBackoff
		}
		c.o.Logger.Error("containerd ended; starting it again", "error", err, "after_ms", time.Since(began).Milliseconds(), "backoff_ms", backoff.Milliseconds())
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// once runs it to its end.
func (c *Containerd) once(ctx context.Context) error {
	n, err := stopLeftovers(ctx, c.config)
	if err != nil {
		return fmt.Errorf("stop a containerd that was left: %w", err)
	}
	if n > 0 {
		c.o.Logger.Info("stopped the containerd of a former daemon", "count", n)
	}
	log, err := openLog(filepath.Join(c.o.Dir, "containerd.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	// Its end is asked for below: a context could only kill it.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), c.o.Binary, "--config", c.config)
	cmd.Dir = c.o.Dir
	cmd.Env = environment(filepath.Dir(c.o.Binary))
	// A file, not a pipe: it must survive this process, which may be killed.
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own: a terminal's ^C is for the daemon alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	c.pid.Store(int64(cmd.Process.Pid))
	c.starts.Add(1)
	defer c.pid.Store(0)
	c.o.Logger.Debug("containerd started", "pid", cmd.Process.Pid)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-ended:
		return err
	case <-time.After(stopGrace):
		c.o.Logger.Warn("containerd does not end; killing it", "pid", cmd.Process.Pid)
		_ = cmd.Process.Kill()
		return <-ended
	}
}

// environment is what containerd gets to see: its own binaries come first.
func environment(bin string) []string {
	env := []string{"PATH=" + bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, kv := range os.Environ() {
		for _, keep := range []string{"HOME=", "TMPDIR=", "LANG=", "TZ="} {
			if strings.HasPrefix(kv, keep) {
				env = append(env, kv)
			}
		}
	}
	return env
}

// openLog opens the log for appending; one that has grown large becomes the old one.
func openLog(path string) (*os.File, error) {
	if fi, err := os.Stat(path); err == nil && fi.Size() > maxLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
}
