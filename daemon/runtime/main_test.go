package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"cairn/daemon/cgroup"
	"cairn/daemon/supervise"
	"cairn/sandbox"
	"cairn/sandbox/stem"

	"golang.org/x/sys/unix"
)

const (
	insideVar = "CAIRN_TEST_NETNS"
	initVar   = "CAIRN_TEST_INIT"
	ownerVar  = "CAIRN_TEST_OWNER" // state directory of a daemon that is to be killed
)

// TestMain builds cairn-init once and runs the tests in a network namespace of
// their own: nothing of the host's network is touched.
func TestMain(m *testing.M) {
	if root := os.Getenv(ownerVar); root != "" {
		owner(root)
		return
	}
	if os.Getenv(insideVar) != "" {
		os.Exit(m.Run())
	}
	os.Exit(outside())
}

func outside() int {
	dir, err := os.MkdirTemp("", "cairn-init-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, initName), "cairn/cmd/cairn-init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build cairn-init: %v\n%s", err, out)
		return 1
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Join(dir, initName), 0o755)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideVar+"=1", initVar+"="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "tests in a network namespace (they need root):", err)
		return 1
	}
	return 0
}

// stemGuest is as much of sandbox.Guest as the tests need.
type stemGuest struct {
	sandbox.Guest
	client *stem.Client
}

func (g stemGuest) Close() error                    { return g.client.Close() }
func (g stemGuest) Ready(ctx context.Context) error { _, err := g.client.Ping(ctx); return err }
func (g stemGuest) Start(ctx context.Context, r sandbox.GuestStart) (int, error) {
	s, err := g.client.Start(ctx, stem.Request{ID: r.ID, Argv: r.Command, Env: r.Env})
	return s.PID, err
}
func (g stemGuest) CloseStdin(ctx context.Context, id string) error { return nil }
func (g stemGuest) Signal(ctx context.Context, id string, n int) error {
	return g.client.Signal(ctx, id, syscall.Signal(n), true)
}
func (g stemGuest) WriteStdin(context.Context, string, []byte) error { return nil }
func (g stemGuest) Wait(ctx context.Context, id string, _ int64) (sandbox.Exit, error) {
	e, err := g.client.Wait(ctx, id)
	code := e.Code
	if e.Signal != 0 {
		code = 128 + e.Signal
	}
	return sandbox.Exit{ExitCode: code}, err
}

func (g stemGuest) Output(id string, s sandbox.Stream, offset int64, max int) (sandbox.Output, error) {
	return sandbox.Output{}, errors.ErrUnsupported
}

func (g stemGuest) Follow(context.Context, string, sandbox.Stream, int64, func([]byte) error) error {
	return errors.ErrUnsupported
}
func (g stemGuest) Forget(ctx context.Context, id string) error { return g.client.Forget(ctx, id) }

// output is what a process has written so far.
func output(t *testing.T, c sandbox.Container, id string) string {
	t.Helper()
	var all []byte
	for _, s := range []stem.Stream{stem.Stdout, stem.Stderr} {
		b, _, _, err := c.Guest().(stemGuest).client.Output(id, s, 0, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	return string(all)
}

// host is a state directory with a containerd on it.
type host struct {
	dir string
	cd  *supervise.Containerd
}

func binDir() (string, error) {
	wd, err := os.Getwd()
	return filepath.Join(wd, "../../bin"), err
}

func startContainerd(ctx context.Context, dir string, log *slog.Logger) (*supervise.Containerd, error) {
	bin, err := binDir()
	if err != nil {
		return nil, err
	}
	return supervise.Start(ctx, supervise.Options{
		Dir: filepath.Join(dir, "c"), Socket: filepath.Join(dir, "run/containerd.sock"),
		Binary: filepath.Join(bin, "containerd"), Logger: log,
	})
}

// testOptions are for a state directory; the skeleton has busybox, so that something can
// be run before a stack is attached.
func testOptions(dir string, log *slog.Logger) (Options, error) {
	bin, err := binDir()
	if err != nil {
		return Options{}, err
	}
	skeleton := filepath.Join(dir, "skel")
	for _, d := range append(mountPoints(), "tmp", "bin", "etc") {
		if err := os.MkdirAll(filepath.Join(skeleton, d), 0o755); err != nil {
			return Options{}, err
		}
	}
	if err := os.Chmod(filepath.Join(skeleton, "tmp"), 0o1777); err != nil {
		return Options{}, err
	}
	bb := filepath.Join(skeleton, "bin/busybox")
	if _, err := os.Stat(bb); err != nil {
		if out, err := exec.Command("cp", "/bin/busybox", bb).CombinedOutput(); err != nil {
			return Options{}, fmt.Errorf("busybox-static is needed: %w: %s", err, out)
		}
	}
	watcher, err := stem.NewWatcher()
	if err != nil {
		return Options{}, err
	}
	return Options{
		Address: filepath.Join(dir, "run/containerd.sock"), Runtime: filepath.Join(bin, "containerd-shim-runc-v2"),
		Runc: filepath.Join(bin, "runc"), RuncState: filepath.Join(dir, "run/runc"),
		Skeleton: skeleton, InitDir: os.Getenv(initVar), Slots: filepath.Join(dir, "s"),
		IDBase: 1 << 24, Cgroup: "/cairn-test/" + filepath.Base(dir), Logger: log,
		Guest: func(io string, _ uint32) (sandbox.Guest, error) {
			c, err := stem.Open(io, stem.Options{Watcher: watcher})
			if err != nil {
				return nil, err
			}
			return stemGuest{client: c}, nil
		},
	}, nil
}

func logger(t testing.TB) *slog.Logger {
	if !testing.Verbose() {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(writer{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type writer struct{ io testing.TB }

func (w writer) Write(b []byte) (int, error) { _, err := os.Stderr.Write(b); return len(b), err }

var _ io.Writer = writer{}

// newHost starts a containerd, and checks at the end that nothing is left.
func newHost(t testing.TB) *host {
	t.Helper()
	dir, err := os.MkdirTemp("", "cr")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	h := &host{dir: dir}
	t.Cleanup(func() { h.clean(t) })
	if h.cd, err = startContainerd(t.Context(), dir, logger(t)); err != nil {
		t.Fatal(err)
	}
	return h
}

// open makes a Runtime on the host; it is closed with everything in it destroyed.
func (h *host) open(t testing.TB, change func(*Options)) *Runtime {
	t.Helper()
	o, err := testOptions(h.dir, logger(t))
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&o)
	}
	r, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// clean destroys whatever there is, and reports what should not be there then.
func (h *host) clean(t testing.TB) {
	ctx := context.Background()
	if h.cd == nil {
		_ = os.RemoveAll(h.dir)
		return
	}
	o, err := testOptions(h.dir, logger(t))
	if err != nil {
		t.Fatal(err)
	}
	o.Warm = Warm{}
	r, err := New(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	names, err := r.Names(ctx)
	for _, n := range names {
		err = errors.Join(err, r.Destroy(ctx, n))
	}
	if err != nil {
		t.Error(err)
	}
	eventually(t, func() error {
		if n := r.Count(); n != 0 {
			return fmt.Errorf("%d containers are left", n)
		}
		return nil
	})
	if err := r.Close(ctx); err != nil {
		t.Error(err)
	}
	// containerd cleans up after a shim that died when it comes to it; one that is stopped
	// before does not.
	eventually(t, func() error { return leftFiles(h.dir) })
	if err := h.cd.Stop(ctx); err != nil {
		t.Error(err)
	}
	eventually(t, func() error { return leaks(h.dir) })
	cg, err := cgroup.Detect()
	if err == nil {
		err = cg.Remove(o.Cgroup)
	}
	if err == nil {
		err = os.RemoveAll(h.dir)
	}
	if err != nil {
		t.Error(err)
	}
}

// eventually waits until check is content.
func eventually(t testing.TB, check func() error) {
	t.Helper()
	deadline, tick := time.After(20*time.Second), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatal("not in time: ", err)
		case <-tick.C:
		}
	}
}
