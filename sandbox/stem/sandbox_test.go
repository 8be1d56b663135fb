package stem_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cairn/sandbox/stem"

	"golang.org/x/sys/unix"
)

const (
	rangeBase   = 100000
	launcherEnv = "STEM_TEST_LAUNCH"
	// testPatience is how long a test waits for what should come at once.
	testPatience = time.Minute
)

// program is the directory that holds the built cairn-init.
var program string

func TestMain(m *testing.M) {
	if dir := os.Getenv(launcherEnv); dir != "" {
		if err := launch(dir); err != nil {
			fmt.Fprintln(os.Stderr, "launch:", err)
		}
		os.Exit(1)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests need root")
		return 1
	}
	dir, err := os.MkdirTemp("", "cairn-init-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir+"/cairn-init", "cairn/cmd/cairn-init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build cairn-init: %v\n%s", err, out)
		return 1
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	program = dir
	return m.Run()
}

// launch runs as PID 1 of new namespaces: it builds a root from the host's programs and
// becomes cairn-init. The layout of dir is made by newBox.
func launch(dir string) error {
	root := dir + "/root"
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make / private: %w", err)
	}
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	for _, d := range []string{"proc", "dev", "usr", "etc", "tmp", "run", "run/cairn", ".cairn", "home", "home/agent", "root"} {
		if err := os.Mkdir(root+"/"+d, 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(root+"/tmp", 0o1777); err != nil {
		return err
	}
	for _, link := range []string{"bin", "lib", "lib64", "sbin"} {
		if err := os.Symlink("usr/"+link, root+"/"+link); err != nil {
			return err
		}
	}
	for _, b := range [][2]string{
		{"/usr", "/usr"}, {"/dev", "/dev"}, {dir + "/io", "/run/cairn"}, {dir + "/bin", "/.cairn"},
	} {
		if err := unix.Mount(b[0], root+b[1], "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind %s: %w", b[1], err)
		}
	}
	// Terminals of its own, beside whatever else the host's /dev has.
	if err := unix.Mount("devpts", root+"/dev/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=0620"); err != nil {
		return fmt.Errorf("devpts: %w", err)
	}
	if err := unix.Mount("proc", root+"/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("proc: %w", err)
	}
	for name, text := range map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:Agent:/home/agent:/bin/sh\n1500:x:1600:1600::/tmp:/bin/sh\n",
		"group":  "root:x:0:\nagent:x:1000:\nwheel:x:27:other,agent\nstaff:x:50:agent\n",
	} {
		if err := os.WriteFile(root+"/etc/"+name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := os.Chown(root+"/home/agent", 1000, 1000); err != nil {
		return err
	}
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the old root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	unix.CloseOnExec(3)
	return unix.Exec("/.cairn/cairn-init", []string{"/.cairn/cairn-init"}, []string{"GOMAXPROCS=1", "GOGC=20"})
}

// box is a sandbox: real namespaces with cairn-init as PID 1.
type box struct {
	*stem.Client
	io   string // the slot's directory
	init int    // PID 1's pid on the host
	cmd  *exec.Cmd
	log  *bytes.Buffer
	seq  atomic.Int64
	done chan struct{}
}

func newBox(t testing.TB, o stem.Options) *box {
	t.Helper()
	dir, err := os.MkdirTemp("", "stem-box-")
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
	check(t, os.Chmod(dir, 0o755))
	for _, d := range []string{"root", "io", "bin"} {
		check(t, os.Mkdir(dir+"/"+d, 0o755))
		check(t, os.Chown(dir+"/"+d, rangeBase, rangeBase))
	}
	check(t, os.Link(program+"/cairn-init", dir+"/bin/cairn-init"))

	b := &box{io: dir + "/io", log: &bytes.Buffer{}, done: make(chan struct{})}
	self, err := os.Executable()
	check(t, err)
	// The range's root can't reach the test's own binary by its path.
	bin, err := os.Open(self)
	check(t, err)
	defer bin.Close()
	b.cmd = exec.Command("/proc/self/fd/3")
	b.cmd.ExtraFiles = []*os.File{bin}
	b.cmd.Env = []string{launcherEnv + "=" + dir}
	b.cmd.Stdout, b.cmd.Stderr = b.log, b.log
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: rangeBase, Size: 65536}}
	b.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET |
			unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		UidMappings:                ids,
		GidMappings:                ids,
		GidMappingsEnableSetgroups: true,
		Credential:                 &syscall.Credential{},
		Pdeathsig:                  syscall.SIGKILL,
	}
	// The thread whose death Pdeathsig watches must live as long as the box.
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer close(b.done)
		err := b.cmd.Start()
		started <- err
		if err == nil {
			// Its exit code is looked at where it matters.
			_ = b.cmd.Wait()
		}
	}()
	check(t, <-started)
	b.init = b.cmd.Process.Pid
	t.Cleanup(func() {
		_ = unix.Kill(b.init, unix.SIGKILL)
		<-b.done
		if t.Failed() {
			stemLog, _ := os.ReadFile(b.io + "/stem.log")
			t.Logf("PID 1: %v\n%s\nstem:\n%s", b.cmd.ProcessState, b.log, stemLog)
		}
	})
	if o.Timeout == 0 {
		o.Timeout = testPatience
	}
	if o.Watcher == nil {
		w, err := stem.NewWatcher()
		check(t, err)
		t.Cleanup(func() { check(t, w.Close()) })
		o.Watcher = w
	}
	b.Client, err = stem.Open(b.io, o)
	check(t, err)
	t.Cleanup(func() { check(t, b.Close()) })
	_, err = b.Ping(t.Context())
	check(t, err)
	return b
}

func (b *box) newID() string { return "exec_" + strconv.FormatInt(b.seq.Add(1), 10) }

// result is a process that has ended.
type result struct {
	stem.Exit
	id, stdout, stderr string
}

func (b *box) run(t testing.TB, r stem.Request) result {
	t.Helper()
	res, err := b.tryRun(t.Context(), r)
	check(t, err)
	return res
}

func (b *box) tryRun(ctx context.Context, r stem.Request) (result, error) {
	if r.ID == "" {
		r.ID = b.newID()
	}
	if _, err := b.Start(ctx, r); err != nil {
		return result{}, err
	}
	exit, err := b.Wait(ctx, r.ID)
	if err != nil {
		return result{}, err
	}
	res := result{Exit: exit, id: r.ID}
	for stream, to := range map[stem.Stream]*string{stem.Stdout: &res.stdout, stem.Stderr: &res.stderr} {
		data, eof, _, err := b.Output(r.ID, stream, 0, 1<<20)
		if err != nil {
			return result{}, err
		}
		if !eof {
			return result{}, fmt.Errorf("%s has no end", stream)
		}
		*to = string(data)
	}
	return res, nil
}

func (b *box) sh(t testing.TB, script string) result {
	t.Helper()
	return b.run(t, stem.Request{Argv: []string{"sh", "-c", script}})
}

func (b *box) start(t testing.TB, argv ...string) string {
	t.Helper()
	id := b.newID()
	_, err := b.Start(t.Context(), stem.Request{ID: id, Argv: argv})
	check(t, err)
	return id
}

// inside returns the host's pids of the sandbox's processes, by pid inside.
func (b *box) inside(t testing.TB) map[int]int {
	t.Helper()
	want, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", b.init))
	check(t, err)
	found := map[int]int{}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	check(t, err)
	for _, d := range dirs {
		ns, err := os.Readlink(d + "/ns/pid")
		if err != nil || ns != want {
			continue
		}
		status, err := os.ReadFile(d + "/status")
		if err != nil {
			continue
		}
		for _, line := range strings.Split(string(status), "\n") {
			f := strings.Fields(line)
			if len(f) == 3 && f[0] == "NSpid:" {
				host, _ := strconv.Atoi(f[1])
				in, _ := strconv.Atoi(f[2])
				found[in] = host
			}
		}
	}
	return found
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until polls for a condition that no event announces.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(testPatience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			t.Fatalf("timed out waiting for %s", what)
		case <-tick.C:
		}
	}
}
