package supervise

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func testOptions(t *testing.T) Options {
	t.Helper()
	dir, err := os.MkdirTemp("", "sv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return Options{Dir: filepath.Join(dir, "c"), Socket: filepath.Join(dir, "run/c.sock"), Binary: filepath.Join(wd, "../../bin/containerd")}
}

func start(t *testing.T, o Options) *Containerd {
	t.Helper()
	c, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func eventually(t *testing.T, check func() error) {
	t.Helper()
	deadline, tick := time.After(time.Minute), time.NewTicker(5*time.Millisecond)
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

func TestLife(t *testing.T) {
	o := testOptions(t)
	c := start(t, o)
	first := c.PID()
	if pids, err := leftovers(c.config); err != nil || len(pids) != 1 || pids[0] != first {
		t.Fatalf("%v run, want %d: %v", pids, first, err)
	}
	for range 2 { // it dies, and is started again
		n := c.Starts()
		if err := syscall.Kill(c.PID(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			if c.Starts() == n || c.PID() == 0 {
				return errors.New("not started again")
			}
			return nil
		})
		if err := c.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := c.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if pids, err := leftovers(c.config); err != nil || len(pids) != 0 {
		t.Fatalf("still there: %v, %v", pids, err)
	}
	if _, err := net.Dial("unix", o.Socket); err == nil {
		t.Error("it still answers")
	}
}

// listening lists the inodes of sockets in a table like /proc/net/tcp that listen.
func listening(table string) []string {
	var out []string
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" {
			out = append(out, f[9])
		}
	}
	return out
}

func TestNoTCP(t *testing.T) {
	c := start(t, testOptions(t))
	dir := fmt.Sprintf("/proc/%d", c.PID())
	open := map[string]bool{}
	fds, err := os.ReadDir(dir + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(dir + "/fd/" + fd.Name()); err == nil {
			open[to] = true
		}
	}
	for _, table := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile(dir + "/net/" + table)
		if err != nil {
			t.Fatal(err)
		}
		for _, inode := range listening(string(b)) {
			if open["socket:["+inode+"]"] {
				t.Errorf("it listens on %s", table)
			}
		}
	}
}

// A containerd that a killed daemon left is stopped; one of another directory is not.
func TestLeftover(t *testing.T) {
	other := start(t, testOptions(t))
	o := testOptions(t)
	config, err := o.prepare()
	if err != nil {
		t.Fatal(err)
	}
	left := exec.Command(o.Binary, "--config", config)
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = left.Wait() // that it ends is what matters
	}()
	if err := Ready(t.Context(), o.Socket); err != nil {
		t.Fatal(err)
	}
	pid := other.PID()
	c := start(t, o)
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the old one runs on")
	}
	if c.PID() == left.Process.Pid || other.PID() != pid || other.Starts() != 1 {
		t.Error("the wrong one was stopped")
	}
}

// Somebody in a sandbox may give a process any name and arguments; root of the
// host it is not.
func TestLeftoverPosed(t *testing.T) {
	// Everybody may read it, and it has something to say.
	const config = "/etc/passwd"
	for uid, want := range map[uint32]bool{0: true, 70000: false} {
		if got := posed(t, uid, config); got != want {
			t.Errorf("of uid %d: %v", uid, got)
		}
	}
}

// posed says whether a process of that user with such arguments is taken for the one looked for.
func posed(t *testing.T, uid uint32, config string) bool {
	t.Helper()
	// As "tail" it is given a file to watch in the place of the configuration.
	pose := exec.Command("/usr/bin/tail", "-f", config)
	pose.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := pose.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := pose.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = pose.Process.Kill()
		_ = pose.Wait()
	}()
	// A process has no arguments yet when it has just been started: the kernel gives it
	// them last. It has them once it says something.
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return runsAs(pose.Process.Pid, "-f", config)
}

func TestRefused(t *testing.T) {
	o := testOptions(t)
	o.Binary = "/nonexistent"
	if _, err := Start(t.Context(), o); err == nil {
		t.Error("no binary, no error")
	}
	o = testOptions(t)
	o.Dir = "relative"
	if _, err := Start(t.Context(), o); err == nil {
		t.Error("relative path, no error")
	}
	// One that ends at once: the error says so, and nothing goes on behind it.
	o = testOptions(t)
	o.Binary = "/bin/false"
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := Start(ctx, o); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestShimSockets(t *testing.T) {
	short := Options{Dir: "/var/lib/cairn/containerd"}
	if got := short.shimSockets(); got != "/var/lib/cairn/containerd/s" {
		t.Error(got)
	}
	a := Options{Dir: "/" + strings.Repeat("long/", 20) + "a"}
	b := Options{Dir: "/" + strings.Repeat("long/", 20) + "b"}
	if x, y := a.shimSockets(), b.shimSockets(); len(x) > maxSocketDir || x == y || !strings.HasPrefix(x, runDir) {
		t.Error(x, y)
	}
}
