package stem_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"cairn/sandbox/stem"
)

// pty is a process at a terminal.
type pty struct {
	*box
	id string
}

func newPTY(t testing.TB, b *box, r stem.Request) *pty {
	t.Helper()
	if r.ID == "" {
		r.ID = b.newID()
	}
	if r.TTY == nil {
		r.TTY = &stem.Size{Rows: 24, Cols: 80}
	}
	_, err := b.Start(t.Context(), r)
	check(t, err)
	return &pty{b, r.ID}
}

// newShell is bash with job control and an empty prompt, whose echo is off.
func newShell(t testing.TB, b *box) *pty {
	t.Helper()
	p := newPTY(t, b, stem.Request{Argv: []string{"bash", "--norc", "--noprofile"}, Env: []string{"PS1=", "PS2="}})
	p.keys(t, "stty -echo; bind 'set enable-bracketed-paste off' 2>/dev/null; echo rea''dy\n")
	p.expect(t, "ready\r\n")
	return p
}

func (p *pty) keys(t testing.TB, s string) {
	t.Helper()
	n, err := p.WriteStdin(t.Context(), p.id, []byte(s))
	if err != nil || n != len(s) {
		t.Fatal(n, err)
	}
}

// expect waits until the output holds want and returns all of it.
func (p *pty) expect(t testing.TB, want string) string {
	t.Helper()
	var got bytes.Buffer
	ctx, cancel := context.WithTimeoutCause(t.Context(), testPatience, errors.New("no such output in time"))
	defer cancel()
	err := p.Follow(ctx, p.id, stem.Stdout, 0, func(b []byte) error {
		got.Write(b)
		if strings.Contains(got.String(), want) {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Fatalf("%v; want %q in %q", err, want, got.String())
	}
	return got.String()
}

// end returns how the process ended and all it printed.
func (p *pty) end(t testing.TB) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	exit, err := p.Wait(ctx, p.id)
	check(t, err)
	data, eof, _, err := p.Output(p.id, stem.Stdout, 0, 1<<30)
	if err != nil || !eof {
		t.Fatal(eof, err)
	}
	errs, eof, _, err := p.Output(p.id, stem.Stderr, 0, 1)
	if err != nil || !eof || len(errs) != 0 {
		t.Fatal(string(errs), eof, err)
	}
	return result{Exit: exit, id: p.id, stdout: string(data)}
}

func TestTerminal(t *testing.T) {
	b := newBox(t, stem.Options{})
	for _, c := range []struct {
		name   string
		req    stem.Request
		code   int
		stdout string
	}{
		{name: "all three are one", req: stem.Request{Argv: []string{"sh", "-c", "test -t 0 && test -t 1 && test -t 2 && echo yes; echo err >&2; exit 7"}}, code: 7, stdout: "yes\r\nerr\r\n"},
		{name: "size", req: stem.Request{Argv: []string{"stty", "size"}, TTY: &stem.Size{Rows: 33, Cols: 101}}, stdout: "33 101\r\n"},
		{name: "of its own", req: stem.Request{Argv: []string{"tty"}}, stdout: "/dev/pts/0\r\n"},
		{name: "controlling", req: stem.Request{Argv: []string{"sh", "-c", "echo by name > /dev/tty"}}, stdout: "by name\r\n"},
		{name: "session leader in the foreground", req: stem.Request{Argv: []string{"sh", "-c", `read -r _ _ _ _ grp ses tty fg _ < /proc/$$/stat; test $grp = $$ -a $ses = $$ -a $fg = $$ -a $tty != 0 && echo leader`}}, stdout: "leader\r\n"},
		{name: "of the user", req: stem.Request{Argv: []string{"sh", "-c", `stat -c %u:%a $(tty); echo x > $(tty)`}, User: "agent"}, stdout: "1000:620\r\nx\r\n"},
		{name: "default type", req: stem.Request{Argv: []string{"sh", "-c", "echo $TERM"}}, stdout: "xterm\r\n"},
		{name: "given type", req: stem.Request{Argv: []string{"sh", "-c", "echo $TERM"}, Env: []string{"TERM=vt220"}}, stdout: "vt220\r\n"},
		{name: "no descriptor of the stem", req: stem.Request{Argv: []string{"sh", "-c", "ls /proc/self/fd | tr '\\n' ' '"}}, stdout: "0 1 2 3 "},
	} {
		t.Run(c.name, func(t *testing.T) {
			res := newPTY(t, b, c.req).end(t)
			if res.Code != c.code || res.Signal != 0 || res.stdout != c.stdout {
				t.Fatalf("%+v", res)
			}
		})
	}
}

func TestTerminalRefused(t *testing.T) {
	b := newBox(t, stem.Options{})
	for name, r := range map[string]stem.Request{
		"pipe":  {Pipe: true},
		"input": {Stdin: strings.NewReader("x")},
	} {
		r.ID, r.Argv, r.TTY = b.newID(), []string{"cat"}, &stem.Size{Rows: 1, Cols: 1}
		if _, err := b.Start(t.Context(), r); !errors.Is(err, stem.BadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	id := b.newID()
	if _, err := b.Start(t.Context(), stem.Request{ID: id, Argv: []string{"no-such-command"}, TTY: &stem.Size{}}); !errors.Is(err, stem.CommandNotFound) {
		t.Fatal(err)
	}
	id = b.start(t, "sleep", "1000")
	if err := b.Resize(t.Context(), id, stem.Size{Rows: 2, Cols: 2}); !errors.Is(err, stem.BadRequest) {
		t.Fatal(err)
	}
	if err := b.Resize(t.Context(), "exec_unknown", stem.Size{}); !errors.Is(err, stem.NotFound) {
		t.Fatal(err)
	}
	done := newPTY(t, b, stem.Request{Argv: []string{"true"}})
	done.end(t)
	if err := b.Resize(t.Context(), done.id, stem.Size{}); !errors.Is(err, stem.NotRunning) {
		t.Fatal(err)
	}
	if _, err := b.WriteStdin(t.Context(), done.id, []byte("x")); !errors.Is(err, stem.NotRunning) {
		t.Fatal(err)
	}
}

func TestResize(t *testing.T) {
	b := newBox(t, stem.Options{})
	// Bash forgets a signal that comes while it runs that signal's trap, so that only the
	// first can be counted upon; the size is looked at besides.
	const script = `trap 'echo told' WINCH; old=$(stty size); echo ready
while :; do sleep 0.05; new=$(stty size); [ "$new" = "$old" ] || echo "$new"; old=$new; done`
	p := newPTY(t, b, stem.Request{Argv: []string{"bash", "--norc", "-c", script}})
	p.expect(t, "ready")
	check(t, b.Resize(t.Context(), p.id, stem.Size{Rows: 50, Cols: 132}))
	p.expect(t, "told\r\n")
	p.expect(t, "50 132\r\n")
	check(t, b.Resize(t.Context(), p.id, stem.Size{Rows: 10, Cols: 20}))
	p.expect(t, "10 20\r\n")
}

func TestControlKeys(t *testing.T) {
	b := newBox(t, stem.Options{})
	p := newShell(t, b)
	p.keys(t, "sleep 1000; echo st''ill here\n")
	until(t, "the foreground job", func() bool { return strings.Contains(b.commands(t), "sleep 1000") })
	p.keys(t, "\x03")
	p.keys(t, "echo code $?\n")
	out := p.expect(t, "code 130\r\n")
	if strings.Contains(out, "still here") {
		t.Fatalf("%q", out)
	}
	p.keys(t, "cat\n")
	until(t, "cat", func() bool { return strings.Contains(b.commands(t), "cat") })
	p.keys(t, "typed\n\x04")
	p.expect(t, "typed\r\n")
	p.keys(t, "exit 3\n")
	if res := p.end(t); res.Code != 3 {
		t.Fatalf("%+v", res)
	}
}

func TestJobControl(t *testing.T) {
	b := newBox(t, stem.Options{})
	p := newShell(t, b)
	p.keys(t, "sleep 1001\n")
	until(t, "the job", func() bool { return strings.Contains(b.commands(t), "sleep 1001") })
	p.keys(t, "\x1a") // ctrl-Z
	p.expect(t, "Stopped")
	p.keys(t, "bg\n")
	p.keys(t, "jobs; echo li''sted\n")
	if out := p.expect(t, "listed\r\n"); !strings.Contains(out, "Running") {
		t.Fatalf("%q", out)
	}
	p.keys(t, "fg\n")
	p.expect(t, "listed\r\nsleep 1001\r\n")
	p.keys(t, "\x03")
	p.keys(t, "jobs; echo emp''ty\n")
	p.expect(t, "sleep 1001\r\n\r\nempty\r\n")
}

// A signal to the process reaches the job that its shell has in the foreground.
func TestSignalReachesJob(t *testing.T) {
	b := newBox(t, stem.Options{})
	p := newShell(t, b)
	p.keys(t, "sleep 1002\n")
	until(t, "the job", func() bool { return strings.Contains(b.commands(t), "sleep 1002") })
	check(t, b.Signal(t.Context(), p.id, syscall.SIGTERM, true)) // bash itself ignores it
	p.keys(t, "echo code $?\n")
	p.expect(t, "code 143\r\n")
	p.keys(t, "sleep 1003\n")
	until(t, "the job", func() bool { return strings.Contains(b.commands(t), "sleep 1003") })
	check(t, b.Signal(t.Context(), p.id, syscall.SIGKILL, true))
	if res := p.end(t); res.Signal != 9 {
		t.Fatalf("%+v", res)
	}
	until(t, "the job's end", func() bool { return !strings.Contains(b.commands(t), "sleep 1003") })
}

// When the leader ends, what it left behind is hung up.
func TestHangUp(t *testing.T) {
	b := newBox(t, stem.Options{})
	p := newPTY(t, b, stem.Request{Argv: []string{"bash", "-c", `
		(trap 'echo hup > /tmp/hup; exit' HUP; echo trap; while :; do sleep 0.01; done) &
		while ! test -e /tmp/go; do sleep 0.01; done`}})
	p.expect(t, "trap")
	b.sh(t, "touch /tmp/go")
	p.end(t)
	until(t, "SIGHUP", func() bool { return b.sh(t, "cat /tmp/hup").stdout == "hup\n" })
}

// What lets go of its terminal and takes it up again is heard again.
func TestTerminalOpenedAgain(t *testing.T) {
	b := newBox(t, stem.Options{})
	p := newPTY(t, b, stem.Request{Argv: []string{"bash", "-c", `
		exec 0<&- 1>&- 2>&-
		while ! test -e /tmp/again; do sleep 0.01; done
		echo back > /dev/tty
		while ! test -e /tmp/end; do sleep 0.01; done`}})
	until(t, "closing", func() bool {
		return b.sh(t, "ls /proc/[0-9]*/fd -l | grep -c pts/ || true").stdout == "1\n" // the stem's own
	})
	b.sh(t, "touch /tmp/again")
	p.expect(t, "back\r\n")
	b.sh(t, "touch /tmp/end")
	if res := p.end(t); res.Code != 0 || res.stdout != "back\r\n" {
		t.Fatalf("%+v", res)
	}
}

func TestTerminalLargeOutput(t *testing.T) {
	const lines = 200_000
	b := newBox(t, stem.Options{})
	p := newPTY(t, b, stem.Request{Argv: []string{"seq", fmt.Sprint(lines)}})
	var want bytes.Buffer
	for i := 1; i <= lines; i++ {
		fmt.Fprintf(&want, "%d\r\n", i)
	}
	var wg sync.WaitGroup
	for i := range 4 { // readers, from different places
		wg.Go(func() {
			var got bytes.Buffer
			offset := i * 1000
			err := p.Follow(t.Context(), p.id, stem.Stdout, int64(offset), func(b []byte) error {
				got.Write(b)
				return nil
			})
			if err != nil || !bytes.Equal(got.Bytes(), want.Bytes()[offset:]) {
				t.Errorf("reader %d: %d bytes, want %d; %v", i, got.Len(), want.Len()-offset, err)
			}
		})
	}
	wg.Wait()
	if res := p.end(t); res.stdout != want.String() {
		t.Fatalf("%d bytes, want %d", len(res.stdout), want.Len())
	}
}

// The last words of a process are there when it has ended.
func TestTerminalLastWords(t *testing.T) {
	b := newBox(t, stem.Options{})
	for i := range 100 {
		p := newPTY(t, b, stem.Request{Argv: []string{"sh", "-c", fmt.Sprintf("seq 300; printf 'the end %d'", i)}})
		res := p.end(t)
		if !strings.HasSuffix(res.stdout, fmt.Sprintf("\r\n300\r\nthe end %d", i)) {
			t.Fatalf("run %d: %q", i, res.stdout)
		}
		check(t, b.Forget(t.Context(), p.id))
	}
}

func TestTerminalInput(t *testing.T) {
	b := newBox(t, stem.Options{})
	p := newPTY(t, b, stem.Request{Argv: []string{"bash", "-c", "stty raw -echo; echo ready; sleep 0.5; head -c 1000000 | cksum"}})
	p.expect(t, "ready")
	data := strings.Repeat("0123456789", 100_000)
	p.keys(t, data)
	p.expect(t, b.sh(t, "yes 0123456789 | tr -d '\\n' | head -c 1000000 | cksum").stdout[:10])
}

func TestTerminalEndOfInput(t *testing.T) {
	b := newBox(t, stem.Options{})
	for _, c := range []string{"cat", "stty eof X; echo set; cat"} {
		p := newPTY(t, b, stem.Request{Argv: []string{"sh", "-c", "stty -echo; echo ready; " + c}})
		p.expect(t, "ready\r\n")
		if strings.HasPrefix(c, "stty") {
			p.expect(t, "set\r\n")
		}
		p.keys(t, "line\n")
		check(t, b.CloseStdin(t.Context(), p.id))
		if res := p.end(t); res.Code != 0 || !strings.HasSuffix(res.stdout, "line\r\n") {
			t.Fatalf("%+v", res)
		}
	}
}

// A terminal that nobody reads takes no more than it holds, and holds up nothing else.
func TestTerminalInputNobodyReads(t *testing.T) {
	b := newBox(t, stem.Options{})
	p := newPTY(t, b, stem.Request{Argv: []string{"sh", "-c", "stty raw -echo; echo ready; exec sleep 1000"}})
	p.expect(t, "ready")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := p.WriteStdin(ctx, p.id, make([]byte, 1<<20))
		done <- err
	}()
	for range 20 {
		if res := b.sh(t, "echo ok"); res.stdout != "ok\n" {
			t.Fatal(res)
		}
	}
	check(t, b.Resize(t.Context(), p.id, stem.Size{Rows: 1, Cols: 1}))
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	check(t, b.Signal(t.Context(), p.id, syscall.SIGKILL, true))
	p.end(t)
}

// Output without end holds up nothing else, and ends with its process.
func TestTerminalFlood(t *testing.T) {
	b := newBox(t, stem.Options{})
	p := newPTY(t, b, stem.Request{Argv: []string{"yes"}})
	p.expect(t, strings.Repeat("y\r\n", 1000))
	for range 20 {
		if res := b.sh(t, "echo ok"); res.stdout != "ok\n" {
			t.Fatal(res)
		}
	}
	p.keys(t, "\x03")
	if res := p.end(t); res.Signal != 2 {
		t.Fatalf("%v", res.Exit)
	}
}

// A terminal that outlives its leader in other hands does not outlive it here.
func TestTerminalFloodAfterTheEnd(t *testing.T) {
	b := newBox(t, stem.Options{})
	// The leader gives up its controlling terminal, so its end hangs up nobody.
	p := newPTY(t, b, stem.Request{Argv: []string{"python3", "-c", `
import fcntl, os, termios, signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if os.fork() == 0:
    while True:
        os.write(1, b"z" * 4000)
fcntl.ioctl(0, termios.TIOCNOTTY)
`}})
	p.end(t)
	if res := b.sh(t, "echo ok"); res.stdout != "ok\n" {
		t.Fatal(res)
	}
	until(t, "the end of the rest", func() bool { return !strings.Contains(b.commands(t), "python3") })
}

func TestManyTerminals(t *testing.T) {
	const count = 100
	b := newBox(t, stem.Options{})
	var all []*pty
	for range count {
		all = append(all, newPTY(t, b, stem.Request{Argv: []string{"cat"}}))
	}
	rss, own := memory(t, b.hostPID(t))
	t.Logf("%d terminals: stem RSS %d KiB, its own %d KiB", count, rss, own)
	for i, p := range all {
		p.keys(t, fmt.Sprintf("I am %d\n", i))
	}
	for i, p := range all {
		p.expect(t, fmt.Sprintf("I am %d\r\nI am %d\r\n", i, i))
		p.keys(t, "\x04")
		p.end(t)
	}
	if n := b.sh(t, "ls /proc/"+fmt.Sprint(b.stemPID(t))+"/fd -l | grep -c ptmx || true").stdout; n != "0\n" {
		t.Fatalf("%s terminals are left open", n)
	}
	n, err := b.KillAll(t.Context())
	if err != nil || n != 0 {
		t.Fatal(n, err)
	}
}

func (b *box) stemPID(t testing.TB) int {
	t.Helper()
	pid, err := b.Ping(t.Context())
	check(t, err)
	return pid
}

// commands lists the command lines in the sandbox.
func (b *box) commands(t testing.TB) string {
	t.Helper()
	var all strings.Builder
	for _, pid := range b.inside(t) {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil {
			all.WriteString(strings.ReplaceAll(string(line), "\x00", " ") + "\n")
		}
	}
	return all.String()
}
