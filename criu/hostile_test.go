package criu_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"cairn/criu"
	"cairn/sandbox/stem"

	"golang.org/x/sys/unix"
)

// Processes that fork, execute and have themselves traced while they are dumped: each dump
// is a whole one or says why it is none, and they run on either way.
func TestHostile(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	id := b.startWorkload(t)
	const again = `sleep 0.001 & wait $!; exec /bin/sh -c "$0" "$0"`
	b.start(t, "/bin/sh", "-c", again, again)
	b.start(t, "/bin/sh", "-c", "while :; do /bin/true; done")
	b.start(t, "python3", "-c", `
import ctypes, os, sys
libc = ctypes.CDLL(None)
n = 0
while True:
    pid = os.fork()
    if pid == 0:
        if n % 3 == 0: libc.ptrace(0, 0, 0, 0)
        if n % 3 == 1: os.setsid()
        if n % 3 == 1 and os.fork() == 0: os._exit(0)
        if n % 3 == 2: os.execv('/bin/true', ['true'])
        os._exit(0)
    n += 1
    _, status = os.waitpid(pid, 0)
`)
	b.start(t, "python3", "-c", `
import threading, time
while True:
    t = [threading.Thread(target=time.sleep, args=(0.0005,)) for _ in range(20)]
    [x.start() for x in t]; [x.join() for x in t]
`)
	const rounds = 8
	good := 0
	var images *os.File
	for round := range rounds {
		dir := newImages(t)
		_, err := c.Dump(t.Context(), b.target(), dir, criu.DumpOptions{LeaveRunning: true})
		var e *criu.Error
		switch {
		case err == nil:
			good++
			images = dir
		case !errors.As(err, &e) || e.Message == "" || e.Code == criu.CodeInternal || e.Code == criu.CodeInterrupted:
			t.Errorf("round %d: %v", round, err)
		default:
			t.Log(err)
		}
		b.ask(t, id, fmt.Sprint("on-", round))
	}
	t.Logf("%d of %d dumps are whole", good, rounds)
	if images == nil {
		t.Fatal("no dump is whole")
	}
	b.restore(t, c, images)
	b.ask(t, id, "after")
}

// Images that are not what was dumped, where nobody compared digests: a restore fails or is
// a whole one, and leaves nothing but PID 1 if it fails.
func TestDamagedImages(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	b.start(t, "sleep", "1000")
	images := newImages(t)
	_, err := c.Dump(t.Context(), b.target(), images, criu.DumpOptions{})
	check(t, err)
	b.clear(t, c)
	names, err := filepath.Glob(images.Name() + "/*.img")
	check(t, err)
	failures := 0
	for i, path := range names {
		was, err := os.ReadFile(path)
		check(t, err)
		for _, damage := range []func([]byte) []byte{
			func(b []byte) []byte { return b[:len(b)/2] },
			func(b []byte) []byte { b[len(b)*(i+1)/(len(names)+1)] ^= 0xff; return b },
		} {
			check(t, os.WriteFile(path, damage(append([]byte(nil), was...)), 0o600))
			_, err := c.Restore(t.Context(), b.target(), images, criu.RestoreOptions{})
			var e *criu.Error
			switch {
			case err == nil:
				check(t, c.Clear(t.Context(), b.target()))
			case !errors.As(err, &e) || e.Message == "":
				t.Errorf("%s: %v", filepath.Base(path), err)
			default:
				failures++
			}
			if left := b.states(t); len(left) != 1 {
				t.Fatalf("%s: processes are left: %v; %v", filepath.Base(path), left, err)
			}
			check(t, os.WriteFile(path, was, 0o600))
		}
	}
	if failures < len(names)/2 {
		t.Errorf("%d of %d damages were noticed", failures, 2*len(names))
	}
	b.restore(t, c, images)
}

// A file that the processes had open is not there any more.
func TestLostFile(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	id := b.start(t, "/bin/sh", "-c", "echo x >/tmp/held; exec 3</tmp/held; echo ready; read x <&3; exec sleep 1000")
	b.says(t, id, "ready")
	b.start(t, "sleep", "1000")
	images := newImages(t)
	_, err := c.Dump(t.Context(), b.target(), images, criu.DumpOptions{})
	check(t, err)
	b.clear(t, c)
	held := b.dir + "/root/tmp/held"
	check(t, os.Rename(held, held+".away"))
	_, err = c.Restore(t.Context(), b.target(), images, criu.RestoreOptions{})
	var e *criu.Error
	if !errors.As(err, &e) || e.Code != criu.CodeImages || !strings.Contains(e.Resource, "tmp/held") {
		t.Errorf("error %v", err)
	}
	if left := b.states(t); len(left) != 1 {
		t.Errorf("processes are left: %v", left)
	}
	check(t, os.Rename(held+".away", held))
	b.restore(t, c, images)
}

// Who has ended and was not waited for, who is stopped, and who waits for no signal.
func TestStates(t *testing.T) {
	c := newCRIU(t, func(o *criu.Options) { o.StopTimeout = time.Second })
	b := newBox(t)
	id := fmt.Sprintf("exec_%d", b.seq.Add(1))
	_, err := b.Start(t.Context(), stem.Request{ID: id, Pipe: true, Argv: []string{"python3", "-c", `
import os, signal, sys, time
def child(fn):
    pid = os.fork()
    if pid == 0: fn(); os._exit(0)
    return pid
exits = child(lambda: os._exit(7)); killed = child(lambda: os.kill(os.getpid(), 9))
stopped = child(lambda: (os.kill(os.getpid(), signal.SIGSTOP), time.sleep(1000)))
os.waitid(os.P_PID, exits, os.WEXITED | os.WNOWAIT); os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
os.waitid(os.P_PID, stopped, os.WSTOPPED | os.WNOWAIT)
print('ready', flush=True); sys.stdin.readline()
print([os.waitpid(exits, 0)[1] >> 8, os.waitpid(killed, 0)[1], open('/proc/%d/stat' % stopped).read().split()[2]])
os.kill(stopped, signal.SIGCONT); os.kill(stopped, 15); print([os.waitpid(stopped, 0)[1]], flush=True)
sys.stdin.readline()`}})
	check(t, err)
	b.says(t, id, "ready")
	images := newImages(t)
	d, err := c.Dump(t.Context(), b.target(), images, criu.DumpOptions{LeaveRunning: true})
	check(t, err)
	f := b.fork(t, c, d.Files)
	_, err = c.Restore(t.Context(), f.target(), images, criu.RestoreOptions{})
	check(t, err)
	f.release(t)
	b.restore(t, c, images)
	for _, x := range []*box{b, f} {
		_, err := x.WriteStdin(t.Context(), id, []byte("\n"))
		check(t, err)
		x.says(t, id, "[7, 9, 'T']\n[15]\n")
	}
	// A process that waits for its child to execute something waits for nothing else. The
	// child goes on in its memory.
	b.start(t, "python3", "-c", "import ctypes, time\nif ctypes.CDLL(None).syscall(58) == 0: time.sleep(1000)")
	waits := 0
	until(t, "a process to wait", func() error {
		for pid, state := range b.states(t) {
			if state == "D" {
				waits = pid
				return nil
			}
		}
		return errors.New("none does")
	})
	b.refused(t, c, criu.CodeTimeout, "", "")
	if got := b.states(t)[waits]; got != "D" {
		t.Errorf("it is %s", got)
	}
}

// A restore that needs more memory than the sandbox may have by now.
func TestMemoryLimit(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	id := b.start(t, "python3", "-c", "import time\nb = bytearray(200 << 20)\nb[::4096] = bytes(b'x') * (200 << 8)\nprint('ready', flush=True)\ntime.sleep(1000)")
	b.says(t, id, "ready")
	images := newImages(t)
	_, err := c.Dump(t.Context(), b.target(), images, criu.DumpOptions{})
	check(t, err)
	b.clear(t, c)
	limit := b.memoryLimit(t)
	was, err := os.ReadFile(limit)
	check(t, err)
	check(t, os.WriteFile(limit, []byte(strconv.Itoa(64<<20)), 0o644))
	_, err = c.Restore(t.Context(), b.target(), images, criu.RestoreOptions{})
	var e *criu.Error
	if !errors.As(err, &e) || e.Code != criu.CodeFailed || e.Resource != "memory" {
		t.Errorf("error %v", err)
	}
	if left := b.states(t); len(left) != 1 {
		t.Errorf("processes are left: %v", left)
	}
	if err := unix.Kill(b.pid, 0); err != nil {
		t.Fatalf("PID 1: %v", err)
	}
	check(t, os.WriteFile(limit, was, 0o644))
	b.restore(t, c, images)
}

// memoryLimit is the file with the limit of the sandbox's control group.
func (b *box) memoryLimit(t testing.TB) string {
	t.Helper()
	for _, path := range []string{
		"/sys/fs/cgroup/memory/cairn-test/" + b.name + "/memory.limit_in_bytes",
		"/sys/fs/cgroup/cairn-test/" + b.name + "/memory.max",
	} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Fatal("the control group has no limit of memory")
	return ""
}
