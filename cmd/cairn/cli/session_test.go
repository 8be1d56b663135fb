package cli_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cairn/api"
	"cairn/api/apitest"
	"cairn/api/types"
	"cairn/sandbox"
)

const patience = 20 * time.Second

// daemon is an API server in this process whose service is a stand-in.
type daemon struct {
	t      *testing.T
	svc    *apitest.Service
	socket string
	stop   func()
}

func newDaemon(t *testing.T) *daemon {
	t.Helper()
	d := &daemon{t: t, svc: apitest.New(t), socket: filepath.Join(t.TempDir(), "s")}
	if _, err := d.svc.Create(t.Context(), sandbox.CreateRequest{Image: "debian", Name: "alice"}); err != nil {
		t.Fatal(err)
	}
	d.start()
	t.Cleanup(func() { d.stop() })
	return d
}

func (d *daemon) start() {
	d.t.Helper()
	handler, err := api.NewServer(api.Options{
		Service: d.svc, Images: d.svc, SpoolDir: d.t.TempDir(),
		Info: func(context.Context) (types.Info, error) { return types.Info{}, nil },
	})
	if err != nil {
		d.t.Fatal(err)
	}
	l, err := net.Listen("unix", d.socket)
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	srv := httptest.NewUnstartedServer(handler)
	srv.Listener.Close()
	srv.Listener = l
	srv.Config.BaseContext = func(net.Listener) context.Context { return ctx }
	srv.Start()
	d.stop = sync.OnceFunc(func() {
		cancel()
		srv.Close()
	})
}

// terminal is a real one, with cairn at it.
type terminal struct {
	t      *testing.T
	master *os.File
	before unix.Termios
	cmd    *exec.Cmd
	done   chan struct{}

	mu   sync.Mutex
	seen bytes.Buffer
	more chan struct{} // closed and replaced when seen grows
}

func (d *daemon) cairn(args ...string) *terminal {
	d.t.Helper()
	t := d.t
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	x := &terminal{t: t, master: os.NewFile(uintptr(fd), "ptmx"), done: make(chan struct{}), more: make(chan struct{})}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		t.Fatal(errno)
	}
	slave := os.NewFile(peer, "tty")
	defer slave.Close()
	x.size(24, 80)
	x.before = x.termios()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	x.cmd = exec.Command(exe, args...)
	x.cmd.Args[0] = "cairn"
	x.cmd.Env = append(os.Environ(), "CAIRN_HOST=unix://"+d.socket, "TERM=vt100")
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = slave, slave, slave
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(x.done)
		_ = x.cmd.Wait() // end looks at the exit code
	}()
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		x.copy()
	}()
	t.Cleanup(func() {
		_ = x.cmd.Process.Kill() // it may have ended
		x.master.Close()
		<-copied
	})
	return x
}

// copy takes what is printed, also when nobody is at the other side just now.
func (x *terminal) copy() {
	raw, err := x.master.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 4096)
	_ = raw.Read(func(fd uintptr) bool { // ends when the terminal is closed
		for {
			n, err := unix.Read(int(fd), buf)
			if err != nil || n == 0 {
				return false
			}
			x.mu.Lock()
			x.seen.Write(buf[:n])
			close(x.more)
			x.more = make(chan struct{})
			x.mu.Unlock()
		}
	})
}

func (x *terminal) control(f func(fd int) error) {
	x.t.Helper()
	raw, err := x.master.SyscallConn()
	if err == nil {
		cerr := raw.Control(func(fd uintptr) { err = f(int(fd)) })
		err = errors.Join(err, cerr)
	}
	if err != nil {
		x.t.Fatal(err)
	}
}

func (x *terminal) size(rows, cols uint16) {
	x.t.Helper()
	x.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
}

func (x *terminal) termios() (tio unix.Termios) {
	x.t.Helper()
	x.control(func(fd int) error {
		got, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err == nil {
			tio = *got
		}
		return err
	})
	return tio
}

// connected waits until the terminal is raw: what is typed before is not the command's.
func (x *terminal) connected() {
	x.t.Helper()
	timeout, tick := time.NewTimer(patience), time.NewTicker(time.Millisecond)
	defer timeout.Stop()
	defer tick.Stop()
	for x.termios() == x.before {
		select {
		case <-tick.C:
		case <-timeout.C:
			x.t.Fatal("the terminal is not made raw")
		}
	}
}

func (x *terminal) keys(s string) {
	x.t.Helper()
	x.connected()
	if _, err := x.master.WriteString(s); err != nil {
		x.t.Fatal(err)
	}
}

// expect waits until text is on the terminal.
func (x *terminal) expect(text string) {
	x.t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		x.mu.Lock()
		seen, more := x.seen.String(), x.more
		x.mu.Unlock()
		if strings.Contains(seen, text) {
			return
		}
		select {
		case <-more:
		case <-timeout.C:
			x.t.Fatalf("no %q in %q", text, seen)
		}
	}
}

// end waits for cairn's end, and checks that the terminal is as it was before.
func (x *terminal) end() (code int) {
	x.t.Helper()
	select {
	case <-x.done:
	case <-time.After(patience):
		x.mu.Lock()
		defer x.mu.Unlock()
		x.t.Fatalf("cairn does not end; the terminal has %q", x.seen.String())
	}
	if x.termios() != x.before {
		x.t.Error("the terminal is not as it was")
	}
	return x.cmd.ProcessState.ExitCode()
}

func (d *daemon) process() sandbox.Process {
	d.t.Helper()
	all, err := d.svc.Processes(d.t.Context(), "alice")
	if err != nil || len(all) != 1 {
		d.t.Fatalf("%v, %v", all, err)
	}
	return all[0]
}

func TestTerminalSize(t *testing.T) {
	d := newDaemon(t)
	x := d.cairn("exec", "-it", "alice", "size")
	x.expect("size 24 80\r\n")
	x.size(40, 100)
	x.expect("size 40 100\r\n")
	if x.termios() == x.before {
		t.Error("the terminal is not raw")
	}
	if err := d.svc.Signal(t.Context(), "alice", d.process().ID, 9); err != nil {
		t.Fatal(err)
	}
	if code := x.end(); code != 137 {
		t.Fatal(code)
	}
}

func TestDetachAndAttach(t *testing.T) {
	d := newDaemon(t)
	x := d.cairn("exec", "-it", "alice", "cat")
	x.keys("hello\r\x03\x10p")
	x.expect("hello\r\x03\x10p") // ctrl-C and a lone ctrl-P are the command's
	x.keys("later\x10")
	x.keys("\x11")
	if code := x.end(); code != 0 {
		t.Fatal(code)
	}
	p := d.process()
	x.expect("cairn attach " + p.SandboxID + " " + p.ID)
	if p.State != sandbox.ProcessRunning {
		t.Fatalf("%+v", p)
	}
	one, two := d.cairn("attach", "alice"), d.cairn("attach", "--tail", "5", "--detach-keys", "ctrl-x", "alice", p.ID)
	one.expect("hello\r\x03\x10plater")
	two.expect("later")
	one.keys("both")
	two.expect("both")
	two.keys("\x18")
	if code := two.end(); code != 0 {
		t.Fatal(code)
	}
	if err := d.svc.CloseStdin(t.Context(), "alice", p.ID); err != nil {
		t.Fatal(err)
	}
	if code := one.end(); code != 0 {
		t.Fatal(code)
	}
	none := d.cairn("attach", "alice")
	if code := none.end(); code != 3 {
		t.Fatal(code)
	}
}

func TestReattach(t *testing.T) {
	d := newDaemon(t)
	x := d.cairn("exec", "-it", "alice", "cat")
	x.keys("before")
	x.expect("before")
	d.stop()
	x.expect("the connection is lost")
	if err := d.svc.WriteStdin(t.Context(), "alice", d.process().ID, []byte("<meanwhile>")); err != nil {
		t.Fatal(err)
	}
	d.start()
	x.expect("attached again")
	x.expect("<meanwhile>")
	x.keys("after")
	x.expect("<meanwhile>after")
	d.stop()
	x.expect("the connection is lost")
	x.keys("\x10\x11") // tired of waiting
	if code := x.end(); code != 0 {
		t.Fatal(code)
	}
}

func TestHangUp(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
		d := newDaemon(t)
		x := d.cairn("exec", "-it", "alice", "block")
		x.connected()
		if err := x.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if code := x.end(); code != 130 {
			t.Fatal(code)
		}
		if want := d.process().ID + " 1"; !slices.Contains(d.svc.Signals, want) {
			t.Fatalf("%v: %v", sig, d.svc.Signals)
		}
	}
}

func TestTerminalRefusals(t *testing.T) {
	d := newDaemon(t)
	for code, args := range map[int][]string{
		2:   {"--json", "exec", "-t", "alice", "cat"},
		127: {"exec", "-it", "alice", "missing"},
		125: {"exec", "-it", "nobody", "cat"},
	} {
		if got := d.cairn(args...).end(); got != code {
			t.Errorf("%v: %d", args, got)
		}
	}
	if got := d.cairn("exec", "-it", "--detach-keys", "ctrl-", "alice", "cat").end(); got != 2 {
		t.Error(got)
	}
}
