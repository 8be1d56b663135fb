package overlay

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// The test binary also serves as the first process of the containers that
// tests make: one that does what it is told through its standard input.
const helperEnv = "OVERLAY_TEST_HELPER"

func TestMain(m *testing.M) {
	switch os.Getenv(helperEnv) {
	case "container":
		helperMain()
	case "agent":
		agentMain()
	default:
		goleak.VerifyTestMain(m)
	}
}

// request asks a helper to do operations on files or start an agent.
type request struct {
	Ops   []op
	Agent string // role of an agent to start
	Kill  int    // agent to end
}

type answer struct {
	Errors []string
	PID    int // of an agent, as the container numbers it
	Err    string
}

// container is a process in user, pid, mount and uts namespaces of its own
// with the pool's skeleton as its root.
type container struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	base uint32
	io   string
	mu   sync.Mutex
}

func startContainer(t testing.TB, p *Pool, base uint32) *container {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root")
	}
	c := &container{t: t, base: base, io: sharedDir(t)}
	if err := os.Chown(c.io, int(base), int(base)); err != nil {
		t.Fatal(err)
	}
	c.cmd = exec.Command("/proc/self/exe")
	c.cmd.Env = []string{helperEnv + "=container", "SKELETON=" + p.Skeleton(), "IO=" + c.io, "PROGRAMS=" + programs(t)}
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:                 unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWNET,
		UidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(base), Size: 65536}},
		GidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(base), Size: 65536}},
		GidMappingsEnableSetgroups: true,
		Credential:                 &syscall.Credential{},
	}
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.in, c.out = in, bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.stop)
	c.ask(request{})
	return c
}

func (c *container) stop() {
	c.in.Close()
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

func (c *container) pid() int { return c.cmd.Process.Pid }

func (c *container) target() Target {
	return Target{PID: c.pid(), UIDBase: c.base, GIDBase: c.base}
}

func (c *container) ask(r request) answer {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	b, err := json.Marshal(r)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.in.Write(append(b, '\n')); err != nil {
		c.t.Fatalf("container: %v", err)
	}
	line, err := c.out.ReadBytes('\n')
	if err != nil {
		c.t.Fatalf("container: %v", err)
	}
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		c.t.Fatalf("container says %q: %v", line, err)
	}
	if a.Err != "" {
		c.t.Fatalf("container: %s", a.Err)
	}
	return a
}

// do has operations done inside that must all succeed.
func (c *container) do(ops ...op) {
	c.t.Helper()
	for i, e := range c.ask(request{Ops: ops}).Errors {
		if e != "" {
			c.t.Fatalf("%+v: %s", ops[i], e)
		}
	}
}

// root opens the container's root as the host sees it.
func (c *container) root() *os.File {
	c.t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/root/", c.pid()))
	if err != nil {
		c.t.Fatal(err)
	}
	return f
}

// processesOf lists the processes of the pid namespace of a process.
func processesOf(t testing.TB, of int) []int {
	t.Helper()
	want, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", of))
	if err != nil {
		t.Fatal(err)
	}
	es, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, e := range es {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// A zombie, which nobody reaps here, has no mount namespace.
		if _, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid)); err != nil {
			continue
		}
		if l, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err == nil && l == want {
			pids = append(pids, pid)
		}
	}
	return pids
}

// helperMain is the first process of a container.
func helperMain() {
	if err := enterSkeleton(os.Getenv("SKELETON"), os.Getenv("IO"), os.Getenv("PROGRAMS")); err != nil {
		fmt.Fprintln(os.Stderr, "helper:", err)
		os.Exit(1)
	}
	unix.Umask(0o022)
	agents := map[int]*exec.Cmd{}
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			os.Exit(0)
		}
		var r request
		var a answer
		if err := json.Unmarshal(line, &r); err != nil {
			a.Err = err.Error()
		}
		for _, o := range r.Ops {
			s := ""
			if err := o.run(); err != nil {
				s = err.Error()
			}
			a.Errors = append(a.Errors, s)
		}
		if r.Agent != "" {
			cmd, err := startAgent(r.Agent)
			if err != nil {
				a.Err = err.Error()
			} else {
				a.PID = cmd.Process.Pid
				agents[a.PID] = cmd
			}
		}
		if r.Kill != 0 {
			_ = agents[r.Kill].Process.Kill()
			_ = agents[r.Kill].Wait()
		}
		b, _ := json.Marshal(a)
		os.Stdout.Write(append(b, '\n'))
	}
}

// enterSkeleton makes the skeleton the root, with the mounts that a
// container has.
func enterSkeleton(skeleton, ioDir, programs string) error {
	type m struct {
		source, target, fstype string
		flags                  uintptr
	}
	at := func(s string) string { return filepath.Join(skeleton, s) }
	for _, m := range []m{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{skeleton, skeleton, "", unix.MS_BIND},
		{ioDir, at("run/cairn"), "", unix.MS_BIND},
		{programs, at(".cairn"), "", unix.MS_BIND},
		{"proc", at("proc"), "proc", 0},
		{"dev", at("dev"), "tmpfs", 0},
	} {
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if err := unix.Chdir(skeleton); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	return unix.Chdir("/")
}

// programs makes a directory with the test binary and, since it may be linked
// dynamically, its loader and libraries.
func programs(t testing.TB) string {
	t.Helper()
	dir := sharedDir(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	install := func(from, name string) {
		to := filepath.Join(dir, name)
		from, err := filepath.EvalSymlinks(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Link(from, to); err == nil {
			return
		}
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	install(exe, "test")
	out, err := exec.Command("ldd", exe).CombinedOutput()
	if err != nil {
		t.Logf("ldd: %v: %s", err, out)
		return dir // not a dynamic executable
	}
	for line := range splitLines(string(out)) {
		for _, f := range strings.Fields(line) {
			if !filepath.IsAbs(f) {
				continue
			}
			name := filepath.Base(f)
			if strings.HasPrefix(name, "ld-linux") {
				name = "ld.so"
			}
			install(f, name)
		}
	}
	return dir
}

// self is a command that runs the test binary inside a container.
func self(role string) *exec.Cmd {
	cmd := exec.Command("/.cairn/test")
	if _, err := os.Stat("/.cairn/ld.so"); err == nil {
		cmd = exec.Command("/.cairn/ld.so", "--library-path", "/.cairn", "/.cairn/test")
	}
	cmd.Env = []string{helperEnv + "=agent", "ROLE=" + role}
	cmd.Stderr = os.Stderr
	cmd.Dir = "/"
	return cmd
}

// sharedDir is a temporary directory whose parents everybody may pass.
func sharedDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "overlay-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// newPool opens a pool on the file system of temporary files.
func newPool(t testing.TB) *Pool {
	t.Helper()
	return openPool(t, sharedDir(t), Options{})
}

func openPool(t testing.TB, dir string, o Options) *Pool {
	t.Helper()
	p, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return p
}

// newXFSPool opens a pool on an XFS file system with reflinks.
func newXFSPool(t testing.TB) *Pool {
	t.Helper()
	dir := sharedDir(t)
	image := filepath.Join(dir, "image")
	at := filepath.Join(dir, "xfs")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"truncate", "-s", "1G", image},
		{"mkfs.xfs", "-q", "-m", "reflink=1", image},
		{"mount", "-o", "loop", image, at},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", at).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	if err := os.Chmod(at, 0o755); err != nil {
		t.Fatal(err)
	}
	return openPool(t, filepath.Join(at, "pool"), Options{})
}

// onEach runs a test on each kind of file system.
func onEach(t *testing.T, f func(t *testing.T, p *Pool)) {
	t.Run("ext4", func(t *testing.T) { f(t, newPool(t)) })
	t.Run("xfs", func(t *testing.T) { f(t, newXFSPool(t)) })
}
