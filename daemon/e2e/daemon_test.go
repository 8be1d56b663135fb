package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"cairn/api/client"
	"cairn/api/types"
)

// options of a daemon under test.
type options struct {
	warm       int
	maxDepth   int    // 0: the default
	lockWait   string // "": the default
	extra      string // more of the configuration, beginning with a table
	failpoints string
	noImage    bool
	plain      bool   // take plainDaemon
	without    string // a program that the daemon is not to find
	pool       string // directory to use as pool, "" for one below the root
}

// host is a daemon, or the next one on the same state directory.
type host struct {
	t      testing.TB
	o      options
	base   string // everything is below
	root   string // the state directory
	client *client.Client
	cmd    *exec.Cmd
	ended  chan struct{} // closed when the process has
	log    logFile
	image  types.Image
}

// newHost makes a state directory, starts a daemon on it and imports the image.
// When the test ends, everything is deleted and nothing may be left.
func newHost(t testing.TB, o options) *host {
	t.Helper()
	h := bareHost(t, o)
	h.start()
	if !o.noImage {
		h.image = ok(h.importImage())(t)
	}
	return h
}

// bareHost is newHost without starting anything.
func bareHost(t testing.TB, o options) *host {
	t.Helper()
	base, err := os.MkdirTemp("/var/tmp", "ce") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, o: o, base: base, root: filepath.Join(base, "r")}
	t.Cleanup(func() {
		h.finish()
		if err := os.RemoveAll(base); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(os.Chmod(base, 0o711), os.Mkdir(h.root, 0o711)); err != nil {
		t.Fatal(err)
	}
	if h.client, err = client.Dial(client.Options{Socket: filepath.Join(h.root, "run", "cairn.sock")}); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *host) configure() {
	h.t.Helper()
	var b strings.Builder
	bin := thePrograms().bin
	if h.o.without != "" {
		bin = h.ownBinaries(bin)
	}
	fmt.Fprintf(&b, "[containerd]\nbinaries = %q\n[warm]\nnone = %d\n[log]\nlevel = \"debug\"\n", bin, h.o.warm)
	if h.o.maxDepth > 0 || h.o.pool != "" {
		fmt.Fprintf(&b, "[pool]\nmax_depth = %d\ndir = %q\n", max(h.o.maxDepth, 2), h.o.pool)
	}
	if h.o.lockWait != "" {
		fmt.Fprintf(&b, "[limits]\nlock_wait = %q\n", h.o.lockWait)
	}
	b.WriteString(h.o.extra)
	if err := os.WriteFile(filepath.Join(h.base, "c.toml"), []byte(b.String()), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// ownBinaries gives a directory with the same programs but options.without.
func (h *host) ownBinaries(bin string) string {
	h.t.Helper()
	dir := filepath.Join(h.base, "bin")
	if os.Mkdir(dir, 0o755) != nil {
		return dir // made before
	}
	for _, e := range ok(os.ReadDir(bin))(h.t) {
		if e.Name() != h.o.without {
			done(h.t, os.Symlink(filepath.Join(bin, e.Name()), filepath.Join(dir, e.Name())))
		}
	}
	return dir
}

// command is a cairnd on the state directory.
func (h *host) command() *exec.Cmd {
	h.configure()
	args := []string{"serve", "--root", h.root, "--config", filepath.Join(h.base, "c.toml")}
	if h.o.failpoints != "" {
		args = append(args, "--failpoints", h.o.failpoints)
	}
	program := "cairnd"
	if h.o.plain {
		program = plainDaemon
	}
	return exec.Command(filepath.Join(thePrograms().bin, program), args...)
}

// start starts a daemon and returns when it is ready.
func (h *host) start() {
	h.t.Helper()
	if err := h.tryStart(); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) tryStart() error {
	h.t.Helper()
	h.cmd, h.log, h.ended = h.command(), logFile(filepath.Join(h.base, "log")), make(chan struct{})
	out, err := os.Create(string(h.log))
	if err != nil {
		return err
	}
	defer out.Close()
	h.cmd.Stdout, h.cmd.Stderr = out, out
	if err := h.cmd.Start(); err != nil {
		return err
	}
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_, _ = cmd.Process.Wait()
		close(ended)
	}(h.cmd, h.ended)
	var last error
	eventually(h.t, "the daemon is ready or has ended", func() bool {
		if h.dead() {
			return true
		}
		ctx, cancel := request()
		defer cancel()
		last = client.Done(h.client.GetReady(ctx))
		return last == nil
	})
	if h.dead() {
		return fmt.Errorf("the daemon ended: %s", h.log)
	}
	return nil
}

func (h *host) dead() bool {
	select {
	case <-h.ended:
		return true
	default:
		return false
	}
}

// wait returns when the daemon has ended.
func (h *host) wait() {
	h.t.Helper()
	eventually(h.t, "the daemon ends", h.dead)
	client.Close(h.client)
}

// stop ends the daemon in order.
func (h *host) stop() {
	h.t.Helper()
	if err := h.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		h.t.Fatal(err)
	}
	h.wait()
	if !strings.Contains(h.log.String(), "msg=stopped") {
		h.t.Errorf("the daemon did not stop in order: %s", h.log.tail())
	}
	h.races()
}

// kill ends the daemon as a crash does.
func (h *host) kill() {
	h.t.Helper()
	if err := h.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		h.t.Fatal(err)
	}
	h.wait()
	h.races()
}

func (h *host) races() {
	h.t.Helper()
	if s := h.log.String(); strings.Contains(s, "DATA RACE") || strings.Contains(s, "panic:") {
		h.t.Errorf("the daemon says: %s", s)
	}
}

func (h *host) restart() { h.t.Helper(); h.stop(); h.start() }
func (h *host) crash()   { h.t.Helper(); h.kill(); h.start() }

// arm restarts the daemon with failpoints, "" for none.
func (h *host) arm(failpoints string) {
	h.t.Helper()
	h.o.failpoints = failpoints
	if !h.dead() {
		h.stop()
	}
	h.start()
}

// request is the context of one request.
func request() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 2*patience)
}

func (h *host) importImage() (types.Image, error) {
	f, err := os.Open(thePrograms().image)
	if err != nil {
		return types.Image{}, err
	}
	defer f.Close()
	ctx, cancel := request()
	defer cancel()
	return client.Get[types.Image](h.client.AddImageWithBody(ctx, &types.AddImageParams{Name: ptr(imageName)}, "application/x-tar", f))
}

// logFile is what a daemon writes: a file, since a pipe could still hold a part
// of it when the daemon has ended.
type logFile string

func (l logFile) String() string {
	b, err := os.ReadFile(string(l))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// tail is the end of it.
func (l logFile) tail() string {
	all := l.String()
	const most = 8 << 10
	return all[max(0, len(all)-most):]
}
