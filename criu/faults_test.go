package criu_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"cairn/criu"
	"cairn/sandbox/stem"

	"golang.org/x/sys/unix"
)

// refused dumps, and checks that it fails with that code and says so of that process's
// resource, and that the tree runs on.
func (b *box) refused(t *testing.T, c *criu.CRIU, code criu.Code, comm, resource string) {
	t.Helper()
	_, err := c.Dump(t.Context(), b.target(), newImages(t), criu.DumpOptions{LeaveRunning: true})
	var e *criu.Error
	if !errors.As(err, &e) || e.Code != code || e.Comm != comm || !strings.Contains(e.Resource, resource) || e.Message == "" {
		t.Fatalf("error %+v, want code %q for %s, %s", err, code, comm, resource)
	}
	t.Log(err)
	if out := b.sh(t, "echo $((6*7))"); out != "42\n" {
		t.Errorf("after the dump was refused, a new process said %q", out)
	}
	for pid, state := range b.states(t) {
		if state == "t" {
			t.Errorf("process %d is still being traced", pid)
		}
	}
}

func TestRefusals(t *testing.T) {
	const wait = "\nprint('ready', flush=True)\nimport sys\nsys.stdin.read()\nimport time\ntime.sleep(1000)"
	for name, c := range map[string]struct {
		script   string
		before   func(t *testing.T, b *box)
		change   func(*criu.Options)
		resource string
	}{
		"own filter": {
			script: `import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))
class prog(ctypes.Structure): _fields_ = [('len', ctypes.c_ushort), ('filter', ctypes.c_void_p)]
assert libc.prctl(22, 2, ctypes.byref(prog(1, ctypes.addressof(code)))) == 0`,
			resource: "seccomp filter",
		},
		"half a connection": {
			script: `import socket
s = socket.socket(socket.AF_UNIX); s.bind('/tmp/half'); s.listen()
print('listening', flush=True); c, _ = s.accept()`,
			before: func(t *testing.T, b *box) {
				conn, err := net.Dial("unix", fmt.Sprintf("/proc/%d/root/tmp/half", b.pid))
				check(t, err)
				t.Cleanup(func() { conn.Close() })
			},
			resource: "Unix socket",
		},
		"large deleted file": {
			script:   "import os\nf = open('/tmp/large', 'wb'); f.write(b'x' * 3000000); f.flush(); os.unlink('/tmp/large')",
			change:   func(o *criu.Options) { o.GhostLimit = 1 << 20 },
			resource: "deleted file /tmp/large",
		},
		"multipath TCP": {
			script:   "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262); s.bind(('127.0.0.1', 0)); s.listen()",
			resource: "MPTCP",
		},
		"traced process": {
			script: `import ctypes, subprocess
p = subprocess.Popen(['sleep', '1000'])
assert ctypes.CDLL(None).ptrace(0x4206, p.pid, 0, 0) == 0`,
			resource: "debugger",
		},
		"user fault descriptor": {
			script:   "import ctypes\nassert ctypes.CDLL(None).syscall(298, ctypes.create_string_buffer(bytes([1,0,0,0,128,0,0,0]) + bytes(112)), 0, -1, -1, 0) >= 0",
			resource: "descriptor",
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newCRIU(t, c.change)
			b := newBox(t)
			id := b.start(t, "python3", "-c", c.script+wait)
			if c.before != nil {
				b.says(t, id, "listening")
				c.before(t, b)
			}
			if strings.HasPrefix(name, "user fault") {
				until(t, "the program", func() error {
					if out := b.output(t, id); !strings.Contains(out, "ready") && !strings.Contains(out, "Error") {
						return errors.New(out)
					}
					return nil
				})
				if !strings.Contains(b.output(t, id), "ready") {
					return // the sandbox does not allow it in the first place
				}
			}
			b.says(t, id, "ready")
			comm := "python3"
			if name == "traced process" {
				comm = "sleep"
			}
			b.refused(t, k, criu.CodeUnsupported, comm, c.resource)
		})
	}
}

// What was started by a stem that died is not in the tree.
func TestOutsideOfTree(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	b.start(t, "sleep", "1000")
	old, err := b.Ping(t.Context())
	check(t, err)
	// It may be gone before it has answered.
	_, _ = b.Start(t.Context(), stem.Request{ID: "killer", Argv: []string{"/bin/sh", "-c", fmt.Sprintf("kill -9 %d", old)}})
	until(t, "another stem", func() error {
		if pid, err := b.Ping(t.Context()); err != nil || pid == old {
			return fmt.Errorf("pid %d: %w", pid, err)
		}
		return nil
	})
	b.refused(t, c, criu.CodeUnsupported, "sleep", "process")
}

func TestNoSpace(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	id := b.startWorkload(t)
	dir := t.TempDir()
	check(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { check(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	images, err := os.Open(dir)
	check(t, err)
	defer images.Close()
	_, err = c.Dump(t.Context(), b.target(), images, criu.DumpOptions{})
	var e *criu.Error
	if !errors.As(err, &e) || e.Code != criu.CodeNoSpace {
		t.Fatalf("error %v", err)
	}
	b.ask(t, id, "on")
}

// criuOf finds the CRIU that works in the sandbox: who was put there from outside.
func (b *box) criuOf(t testing.TB) int {
	t.Helper()
	pid := b.findCRIU(t)
	if pid == 0 {
		t.Fatal("no CRIU runs in the sandbox")
	}
	return pid
}

func (b *box) findCRIU(t testing.TB) int {
	t.Helper()
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", b.pid))
	check(t, err)
	dirs, err := filepath.Glob("/proc/[0-9]*")
	check(t, err)
	for _, d := range dirs {
		in, err := os.Readlink(d + "/ns/pid")
		if err != nil || in != ns {
			continue
		}
		text, err := os.ReadFile(d + "/cmdline")
		if err == nil && bytes.Contains(text, []byte("/criu/ld.so")) {
			pid, err := strconv.Atoi(filepath.Base(d))
			check(t, err)
			return pid
		}
	}
	return 0
}

// parentOf is the parent of a process of the host.
func parentOf(t testing.TB, pid int) int {
	t.Helper()
	out, err := exec.Command("ps", "-o", "ppid=", "-p", strconv.Itoa(pid)).Output()
	check(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(out)))
	check(t, err)
	return n
}

// victims are the processes that one may kill in the middle.
func victims() map[string]func(t testing.TB, b *box) int {
	return map[string]func(t testing.TB, b *box) int{
		"CRIU":    func(t testing.TB, b *box) int { return b.criuOf(t) },
		"enterer": func(t testing.TB, b *box) int { return parentOf(t, b.criuOf(t)) },
		"helper":  func(t testing.TB, b *box) int { return parentOf(t, parentOf(t, b.criuOf(t))) },
	}
}

func TestKilledInDump(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	id := b.startWorkload(t)
	for name, victim := range victims() {
		_, err := c.Dump(t.Context(), b.target(), newImages(t), criu.DumpOptions{LeaveRunning: true, Stopped: func(context.Context) error {
			return unix.Kill(victim(t, b), unix.SIGKILL)
		}})
		var e *criu.Error
		if name != "enterer" && (!errors.As(err, &e) || e.Code != criu.CodeInterrupted) {
			t.Errorf("%s killed: %v", name, err)
		}
		// A CRIU whose helper was killed lets the tree go by itself.
		until(t, "CRIU to end", func() error {
			if pid := b.findCRIU(t); pid != 0 {
				return fmt.Errorf("process %d", pid)
			}
			return nil
		})
		b.ask(t, id, "on-"+name)
	}
	// And it can still be dumped and restored.
	images := newImages(t)
	_, err := c.Dump(t.Context(), b.target(), images, criu.DumpOptions{})
	check(t, err)
	b.restore(t, c, images)
	b.ask(t, id, "again")
}

func TestKilledInRestore(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	id := b.startWorkload(t)
	images := newImages(t)
	_, err := c.Dump(t.Context(), b.target(), images, criu.DumpOptions{})
	check(t, err)
	check(t, b.HoldStem())
	check(t, c.Clear(t.Context(), b.target()))
	failure := errors.New("changed my mind")
	// A CRIU that was killed leaves what it was about to delete: whoever restores again
	// attaches the files anew.
	freshFiles := func() {
		ghosts, err := filepath.Glob(b.dir + "/root/tmp/w/*.ghost")
		check(t, err)
		for _, g := range ghosts {
			check(t, os.Remove(g))
		}
	}
	for name, kill := range victims() {
		freshFiles()
		_, err := c.Restore(t.Context(), b.target(), images, criu.RestoreOptions{Restored: func(context.Context, int) error {
			return unix.Kill(kill(t, b), unix.SIGKILL)
		}})
		if name == "enterer" && err == nil {
			// Nobody needs it any more: the tree is there.
			check(t, c.Clear(t.Context(), b.target()))
			continue
		}
		var e *criu.Error
		if !errors.As(err, &e) || e.Code != criu.CodeInterrupted {
			t.Errorf("%s killed: %v", name, err)
		}
		if left := b.states(t); len(left) != 1 {
			t.Errorf("%s killed: processes are left: %v; %v", name, left, err)
		}
	}
	freshFiles()
	_, err = c.Restore(t.Context(), b.target(), images, criu.RestoreOptions{Restored: func(context.Context, int) error { return failure }})
	if !errors.Is(err, failure) {
		t.Errorf("a restore that was called off: %v", err)
	}
	if left := b.states(t); len(left) != 1 {
		t.Errorf("processes are left: %v", left)
	}
	freshFiles()
	b.restore(t, c, images)
	b.ask(t, id, "after")
}

func TestUnavailable(t *testing.T) {
	b := newBox(t)
	for name, change := range map[string]func(*criu.Options){
		"no bundle": func(o *criu.Options) { o.Bundle.Dir = t.TempDir() },
		"no helper": func(o *criu.Options) { o.Helper = filepath.Join(t.TempDir(), "none") },
		"broken":    func(o *criu.Options) { o.Bundle.Dir = brokenBundle(t) },
	} {
		c := newCRIU(t, change)
		f, err := c.Probe(t.Context())
		if err != nil || f.Supported || len(f.Reasons) == 0 {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
		_, err = c.Dump(t.Context(), b.target(), newImages(t), criu.DumpOptions{})
		var e *criu.Error
		if !errors.As(err, &e) || e.Code != criu.CodeUnavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := newCRIU(t, nil)
	f, err := c.Probe(t.Context())
	if err != nil || !f.Supported || f.Version == "" {
		t.Errorf("%+v, %v", f, err)
	}
	_, err = c.Dump(t.Context(), criu.Target{PID: 1 << 22}, newImages(t), criu.DumpOptions{})
	var e *criu.Error
	if !errors.As(err, &e) || e.Code != criu.CodeGone {
		t.Errorf("no such sandbox: %v", err)
	}
}

func brokenBundle(t testing.TB) string {
	dir := t.TempDir()
	for _, f := range []string{"ld.so", "criu"} {
		check(t, os.WriteFile(filepath.Join(dir, f), []byte("#!/bin/false\n"), 0o755))
	}
	return dir
}
