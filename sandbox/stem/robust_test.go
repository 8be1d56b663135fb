package stem_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cairn/sandbox/stem"
	"cairn/sandbox/stem/wire"

	"golang.org/x/sys/unix"
)

// hostPID returns the host's pid of the stem.
func (b *box) hostPID(t testing.TB) int {
	t.Helper()
	pid, err := b.Ping(t.Context())
	check(t, err)
	host := b.inside(t)[pid]
	if host == 0 {
		t.Fatalf("the stem %d is not there", pid)
	}
	return host
}

func (b *box) onlyInitAndStem(t testing.TB) {
	t.Helper()
	until(t, "PID 1 and the stem to be alone", func() bool { return len(b.inside(t)) == 2 })
}

func TestOrphansAreReaped(t *testing.T) {
	b := newBox(t, stem.Options{})
	b.sh(t, `i=0; while [ $i -lt 50 ]; do (setsid sleep 0.1 &) ; (setsid true &); i=$((i+1)); done`)
	b.onlyInitAndStem(t)
}

func TestStemHoldsNothing(t *testing.T) {
	b := newBox(t, stem.Options{})
	id := b.newID()
	_, err := b.Start(t.Context(), stem.Request{ID: id, Argv: []string{"cat"}, Pipe: true, User: "agent", Cwd: "/tmp"})
	check(t, err)
	allowed := []string{"/dev/null", "/run/cairn/", "socket:", "pipe:", "anon_inode:"}
	for _, pid := range []int{b.init, b.hostPID(t)} {
		dir := fmt.Sprintf("/proc/%d/", pid)
		if cwd, err := os.Readlink(dir + "cwd"); err != nil || cwd != "/" {
			t.Fatal(cwd, err)
		}
		entries, err := os.ReadDir(dir + "fd")
		check(t, err)
		for _, e := range entries {
			fd, err := strconv.Atoi(e.Name())
			check(t, err)
			if pid == b.init && fd < 3 {
				continue // the test's own
			}
			target, err := os.Readlink(dir + "fd/" + e.Name())
			ok := err == nil
			if ok {
				ok = false
				for _, prefix := range allowed {
					ok = ok || strings.HasPrefix(target, prefix)
				}
			}
			if !ok && pid != b.init {
				t.Errorf("the stem holds %q", target)
			}
		}
		maps, err := os.ReadFile(dir + "maps")
		check(t, err)
		for _, line := range strings.Split(string(maps), "\n") {
			if i := strings.IndexByte(line, '/'); i >= 0 && !strings.HasPrefix(line[i:], "/.cairn/cairn-init") {
				t.Errorf("%d maps %q", pid, line)
			}
		}
	}
}

func TestStartedProcessHoldsOnlyItsStreams(t *testing.T) {
	b := newBox(t, stem.Options{})
	id := b.newID()
	started, err := b.Start(t.Context(), stem.Request{ID: id, Argv: []string{"sleep", "1000"}, Pipe: true})
	check(t, err)
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", b.inside(t)[started.PID]))
	check(t, err)
	if len(entries) != 3 {
		t.Fatal(entries)
	}
}

func TestStemKilled(t *testing.T) {
	b := newBox(t, stem.Options{})
	ended := b.start(t, "sh", "-c", "echo ready; sleep 0.3; exit 5")
	running := b.start(t, "sleep", "1000")
	follow(t, b, ended, "ready\n")
	old := b.hostPID(t)
	check(t, unix.Kill(old, unix.SIGSEGV)) // sent, not earned: dropped
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		if now := b.hostPID(t); sig == syscall.SIGKILL && now != old {
			t.Fatal("SIGSEGV ended the stem")
		}
		old = b.hostPID(t)
		check(t, unix.Kill(old, sig))
		until(t, "another stem", func() bool {
			pid, err := b.Ping(t.Context())
			return err == nil && b.inside(t)[pid] != old
		})
	}
	if res := b.sh(t, "echo usable"); res.stdout != "usable\n" {
		t.Fatal(res)
	}
	// PID 1 records what the dead stem had started.
	exit, err := b.Wait(t.Context(), ended)
	if err != nil || exit.Code != 5 || exit.Lost {
		t.Fatal(exit, err)
	}
	// The stem learns from PID 1's record, a little later, that what it adopted has ended.
	until(t, "the list to hold what runs", func() bool {
		list, err := b.List(t.Context())
		return err == nil && len(list) == 1 && list[0].ID == running && list[0].Adopted
	})
	check(t, b.Signal(t.Context(), running, syscall.SIGKILL, true))
	if exit, err := b.Wait(t.Context(), running); err != nil || exit.Signal != 9 {
		t.Fatal(exit, err)
	}
	b.onlyInitAndStem(t)
}

// A stem that is killed as its processes end must not lose one of them.
func TestStemKilledWhileProcessesEnd(t *testing.T) {
	b := newBox(t, stem.Options{})
	for round := range 10 {
		var ids []string
		for i := range 10 {
			ids = append(ids, b.start(t, "sh", "-c", fmt.Sprintf("sleep 0.%02d; exit 3", i)))
		}
		stemPID := b.hostPID(t)
		if _, err := b.Wait(t.Context(), ids[round]); err != nil {
			t.Fatal(err)
		}
		check(t, unix.Kill(stemPID, unix.SIGKILL))
		for _, id := range ids {
			if exit, err := b.Wait(t.Context(), id); err != nil || exit.Lost || exit.Code != 3 {
				t.Fatal(exit, err)
			}
		}
		_, err := b.Ping(t.Context())
		check(t, err)
	}
}

func TestHoldStem(t *testing.T) {
	b := newBox(t, stem.Options{})
	stemPID := b.hostPID(t)
	check(t, b.HoldStem())
	check(t, unix.Kill(stemPID, unix.SIGKILL))
	until(t, "the stem to be gone", func() bool { return len(b.inside(t)) == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), inVain)
	defer cancel()
	if _, err := b.Ping(ctx); !errors.Is(err, stem.Unreachable) {
		t.Fatal(err)
	}
	if n := len(b.inside(t)); n != 1 {
		t.Fatalf("%d processes while held", n)
	}
	check(t, b.ReleaseStem())
	check(t, unix.Kill(b.init, unix.SIGUSR1))
	until(t, "the stem", func() bool {
		_, err := b.Ping(t.Context())
		return err == nil
	})
}

func TestKillAll(t *testing.T) {
	b := newBox(t, stem.Options{})
	// Half are a killed stem's, so PID 1 has to reap them.
	orphan := b.start(t, "sh", "-c", "setsid sleep 1000 & sleep 1000")
	old := b.hostPID(t)
	check(t, unix.Kill(old, unix.SIGKILL))
	until(t, "another stem", func() bool {
		pid, err := b.Ping(t.Context())
		return err == nil && b.inside(t)[pid] != old
	})
	spawner := b.start(t, "sh", "-c", "echo ready; while :; do setsid sleep 1000 & sleep 0.005; done")
	stopped := b.start(t, "sh", "-c", "kill -STOP $$")
	user := b.newID()
	_, err := b.Start(t.Context(), stem.Request{ID: user, Argv: []string{"sleep", "1000"}, User: "agent"})
	check(t, err)
	follow(t, b, spawner, "ready\n")
	n, err := b.KillAll(t.Context())
	if err != nil || n != 4 {
		t.Fatal(n, err)
	}
	if in := b.inside(t); len(in) != 2 {
		t.Fatal(in)
	}
	for _, id := range []string{orphan, spawner, stopped, user} {
		if exit, err := b.Exit(id); err != nil || exit.Signal != 9 {
			t.Fatal(id, exit, err)
		}
	}
	if n, err := b.KillAll(t.Context()); err != nil || n != 0 {
		t.Fatal(n, err)
	}
	if res := b.sh(t, "echo usable"); res.stdout != "usable\n" {
		t.Fatal(res)
	}
}

// No signal has its default effect in PID 1. What the kernel spares the first process of a
// namespace it spares it only while its first thread does not happen to block the signal.
func TestInitHasNoDefaultSignal(t *testing.T) {
	b := newBox(t, stem.Options{})
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.init))
	check(t, err)
	var handled uint64
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 2 && (f[0] == "SigCgt:" || f[0] == "SigIgn:") {
			set, err := strconv.ParseUint(f[1], 16, 64)
			check(t, err)
			handled |= set
		}
	}
	if want := ^uint64(1<<(unix.SIGKILL-1) | 1<<(unix.SIGSTOP-1)); handled != want {
		t.Fatalf("handled %#x, not %#x", handled, want)
	}
}

// Signals that end a Go program by default must not end PID 1, whoever sends them.
func TestInitSurvivesSignals(t *testing.T) {
	b := newBox(t, stem.Options{})
	b.sh(t, `for s in $(seq 1 64); do case $s in 9|15|19) ;; *) kill -$s 1 ;; esac; done`)
	for sig := unix.Signal(1); sig <= 31; sig++ {
		if sig != unix.SIGKILL && sig != unix.SIGTERM && sig != unix.SIGSTOP {
			check(t, unix.Kill(b.init, sig))
		}
	}
	if res := b.sh(t, "echo usable"); res.stdout != "usable\n" {
		t.Fatal(res)
	}
}

func TestInitEnds(t *testing.T) {
	b := newBox(t, stem.Options{})
	asked := b.start(t, "sleep", "1000")
	deaf := b.start(t, "sh", "-c", `trap '' TERM; echo ready; while :; do sleep 0.01; done`)
	follow(t, b, deaf, "ready\n")
	check(t, unix.Kill(b.init, unix.SIGTERM))
	select {
	case <-b.done:
	case <-time.After(testPatience):
		t.Fatal("PID 1 did not end")
	}
	if code := b.cmd.ProcessState.ExitCode(); code != 0 {
		t.Fatal(code)
	}
	if exit, err := b.Exit(asked); err != nil || exit.Signal != 15 {
		t.Fatal(exit, err)
	}
	if exit, err := b.Exit(deaf); err != nil || exit.Signal != 9 {
		t.Fatal(exit, err)
	}
}

func TestBadFrames(t *testing.T) {
	b := newBox(t, stem.Options{})
	before := b.hostPID(t)
	frame := func(kind wire.Kind, payload string) string {
		f, err := wire.AppendFrame(nil, kind, []byte(payload))
		check(t, err)
		return string(f)
	}
	for name, c := range map[string]struct {
		send  string
		reply wire.Kind // 0: the connection just ends
	}{
		"nothing":         {"", 0},
		"half a length":   {"\x00\x00", 0},
		"no body":         {"\x00\x00\x00\x00", wire.KindError},
		"too large":       {"\xff\xff\xff\xff", wire.KindError},
		"cut short":       {"\x00\x3f\x00\x00\x01\x02", 0},
		"other version":   {"\x00\x00\x00\x02\x09\x01", wire.KindError},
		"unknown kind":    {frame(99, ""), wire.KindError},
		"start of junk":   {frame(wire.KindStart, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), wire.KindError},
		"id with a slash": {frame(wire.KindForget, "\x04../x"), wire.KindError},
		"trailing bytes":  {frame(wire.KindForget, "\x01xyz"), wire.KindError},
		"terminal":        {frame(wire.KindResize, ""), wire.KindError},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("unix", b.io+"/stem.sock")
			check(t, err)
			defer conn.Close()
			check(t, conn.SetDeadline(time.Now().Add(testPatience)))
			_, err = conn.Write([]byte(c.send))
			check(t, err)
			check(t, conn.(*net.UnixConn).CloseWrite())
			kind, _, err := wire.ReadFrame(conn, wire.MaxReply)
			if c.reply == 0 && err == nil || c.reply != 0 && (err != nil || kind != c.reply) {
				t.Fatal(kind, err)
			}
		})
	}
	if now := b.hostPID(t); now != before {
		t.Fatal("the stem was started again")
	}
}

func TestManySilentConnections(t *testing.T) {
	b := newBox(t, stem.Options{})
	for range 70 {
		conn, err := net.Dial("unix", b.io+"/stem.sock")
		check(t, err)
		defer conn.Close()
	}
	if res := b.sh(t, "echo served"); res.stdout != "served\n" {
		t.Fatal(res)
	}
}

// Whatever root inside puts in the place of the prepared directory costs one start at most.
func TestOddSpare(t *testing.T) {
	b := newBox(t, stem.Options{})
	before := b.hostPID(t)
	for _, script := range []string{
		`rm -rf $s`,
		`rm -rf $s; mkfifo $s`,
		`rm -rf $s; ln -s /tmp $s`,
		`rm -rf $s; echo x > $s`,
		`mkdir -p $s; rm -f $s/stdout; mkfifo $s/stdout; exec 3<>$s/stdout`,
		`mkdir -p $s; rm -f $s/stdout $s/stderr; ln -s /etc/passwd $s/stdout; mkdir $s/stderr`,
		`mkdir -p $s; rm -f $s/pid.new $s/status.new; mkfifo $s/pid.new; mkdir $s/status.new`,
		`rm -rf $s.new; echo x > $s.new; rm -rf $s`,
	} {
		b.sh(t, "s=/run/cairn/spare; "+script)
		if _, err := b.tryRun(t.Context(), stem.Request{Argv: []string{"true"}}); err != nil {
			t.Logf("%s: %v", script, err)
		}
		if res := b.sh(t, "echo usable"); res.stdout != "usable\n" {
			t.Fatal(script, res)
		}
	}
	if now := b.hostPID(t); now != before {
		t.Fatal("the stem was started again")
	}
}

// An id is used once, with input and without.
func TestIDUsedTwice(t *testing.T) {
	b := newBox(t, stem.Options{})
	for _, input := range []string{"", "in"} {
		r := stem.Request{ID: b.newID(), Argv: []string{"sh", "-c", "cat; echo first"}}
		if input != "" {
			r.Stdin = strings.NewReader(input)
		}
		b.run(t, r)
		for range 2 {
			if _, err := b.Start(t.Context(), stem.Request{ID: r.ID, Argv: []string{"true"}}); !errors.Is(err, stem.Exists) {
				t.Fatal(err)
			}
		}
		if data, _, _, err := b.Output(r.ID, stem.Stdout, 0, 100); err != nil || string(data) != input+"first\n" {
			t.Fatal(string(data), err)
		}
	}
}
