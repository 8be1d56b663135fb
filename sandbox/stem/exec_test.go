package stem_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"

	"cairn/sandbox/stem"
)

func TestExec(t *testing.T) {
	b := newBox(t, stem.Options{})
	long := strings.Repeat("x", 100<<10)
	for _, c := range []struct {
		name           string
		req            stem.Request
		code, signal   int
		stdout, stderr string
	}{
		{name: "true", req: stem.Request{Argv: []string{"true"}}},
		{name: "exit code", req: stem.Request{Argv: []string{"sh", "-c", "exit 42"}}, code: 42},
		{name: "highest exit code", req: stem.Request{Argv: []string{"sh", "-c", "exit 255"}}, code: 255},
		{name: "signal", req: stem.Request{Argv: []string{"sh", "-c", "kill -9 $$"}}, signal: 9},
		{name: "core signal", req: stem.Request{Argv: []string{"sh", "-c", "ulimit -c 0; kill -SEGV $$"}}, signal: 11},
		{name: "both streams", req: stem.Request{Argv: []string{"sh", "-c", "echo out; echo err >&2"}}, stdout: "out\n", stderr: "err\n"},
		{name: "stdout opened again", req: stem.Request{Argv: []string{"sh", "-c", "echo a > /dev/stdout; echo b"}, User: "agent"}, stdout: "a\nb\n"},
		{name: "cwd", req: stem.Request{Argv: []string{"pwd"}, Cwd: "/home/agent"}, stdout: "/home/agent\n"},
		{name: "relative command", req: stem.Request{Argv: []string{"./true"}, Cwd: "/usr/bin"}},
		{name: "environment", req: stem.Request{Argv: []string{"env"}, Env: []string{"A=1", "PATH=/bin", "HOME=/x"}}, stdout: "A=1\nPATH=/bin\nHOME=/x\n"},
		{
			name: "default environment", req: stem.Request{Argv: []string{"env"}, User: "agent"},
			stdout: "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nHOME=/home/agent\n",
		},
		{name: "user by name", req: stem.Request{Argv: []string{"sh", "-c", "id -u; id -g; id -G"}, User: "agent"}, stdout: "1000\n1000\n1000 27 50\n"},
		{name: "user by number", req: stem.Request{Argv: []string{"sh", "-c", "id -u; id -G"}, User: "1000"}, stdout: "1000\n1000 27 50\n"},
		{name: "user named like a number", req: stem.Request{Argv: []string{"id", "-u"}, User: "1500"}, stdout: "1600\n"},
		{name: "unlisted number", req: stem.Request{Argv: []string{"sh", "-c", "id -u; id -G; echo $HOME"}, User: "4000"}, stdout: "4000\n0\n/\n"},
		{name: "group by name", req: stem.Request{Argv: []string{"sh", "-c", "id -u; id -G"}, User: "agent:wheel"}, stdout: "1000\n27\n"},
		{name: "group by number", req: stem.Request{Argv: []string{"id", "-G"}, User: "0:77"}, stdout: "77\n"},
		{name: "no input", req: stem.Request{Argv: []string{"cat"}}},
		{name: "input from a file", req: stem.Request{Argv: []string{"cat"}, Stdin: strings.NewReader("hello")}, stdout: "hello"},
		{name: "input from a file as a user", req: stem.Request{Argv: []string{"cat"}, Stdin: strings.NewReader(long), User: "agent"}, stdout: long},
		{name: "huge arguments", req: stem.Request{Argv: []string{"printf", "%s", long, long}}, stdout: long + long},
		{name: "huge environment", req: stem.Request{Argv: []string{"sh", "-c", "echo ${#BIG}"}, Env: []string{"BIG=" + long}}, stdout: "102400\n"},
		{name: "session leader", req: stem.Request{Argv: []string{"sh", "-c", `read -r _ _ _ _ grp ses _ < /proc/$$/stat; test $grp = $$ -a $ses = $$ && echo leader`}}, stdout: "leader\n"},
		{
			name: "default signals", req: stem.Request{Argv: []string{"sed", "-n", "/^Sig[BIC]/p", "/proc/self/status"}},
			stdout: "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nSigCgt:\t0000000000000000\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.req.ID = b.newID()
			_, err := b.Start(t.Context(), c.req)
			check(t, err)
			exit, err := b.Wait(t.Context(), c.req.ID)
			check(t, err)
			out, _, _, err := b.Output(c.req.ID, stem.Stdout, 0, 1<<20)
			check(t, err)
			errout, _, _, err := b.Output(c.req.ID, stem.Stderr, 0, 1<<20)
			check(t, err)
			if exit.Code != c.code || exit.Signal != c.signal || string(out) != c.stdout || string(errout) != c.stderr {
				t.Fatalf("code %d, signal %d, stdout %.200q, stderr %.200q", exit.Code, exit.Signal, out, errout)
			}
			if exit.FinishedAt.Before(exit.StartedAt) || exit.MaxRSSBytes <= 0 || exit.Lost {
				t.Fatalf("implausible: %+v", exit)
			}
		})
	}
}

func TestStartRefused(t *testing.T) {
	b := newBox(t, stem.Options{})
	b.sh(t, `mkdir -m 700 /root/private; printf '#!/no/such\n' > /tmp/interp; printf junk > /tmp/junk; chmod 755 /tmp/interp /tmp/junk
		printf x > /tmp/plain; mkfifo /tmp/fifo; chmod 755 /tmp/fifo; mkdir /tmp/dir; ln -s loop /tmp/loop`)
	for _, c := range []struct {
		name string
		req  stem.Request
		want stem.Code
	}{
		{"unknown command", stem.Request{Argv: []string{"no-such-command"}}, stem.CommandNotFound},
		{"unknown path", stem.Request{Argv: []string{"/no/such"}}, stem.CommandNotFound},
		{"empty path", stem.Request{Argv: []string{"true"}, Env: []string{"PATH="}}, stem.CommandNotFound},
		{"missing interpreter", stem.Request{Argv: []string{"/tmp/interp"}}, stem.CommandNotFound},
		{"no program", stem.Request{Argv: []string{"/tmp/junk"}}, stem.PermissionDenied},
		{"not executable", stem.Request{Argv: []string{"/tmp/plain"}}, stem.PermissionDenied},
		{"directory", stem.Request{Argv: []string{"/tmp/dir"}}, stem.PermissionDenied},
		{"fifo", stem.Request{Argv: []string{"/tmp/fifo"}}, stem.PermissionDenied},
		{"link loop", stem.Request{Argv: []string{"/tmp/loop"}}, stem.PermissionDenied},
		{"cwd missing", stem.Request{Argv: []string{"true"}, Cwd: "/no/such"}, stem.BadCwd},
		{"cwd a file", stem.Request{Argv: []string{"true"}, Cwd: "/etc/passwd"}, stem.BadCwd},
		{"cwd relative", stem.Request{Argv: []string{"true"}, Cwd: "tmp"}, stem.BadCwd},
		{"cwd of another user", stem.Request{Argv: []string{"true"}, Cwd: "/root/private", User: "agent"}, stem.BadCwd},
		{"unknown user", stem.Request{Argv: []string{"true"}, User: "nobody-here"}, stem.BadUser},
		{"unknown group", stem.Request{Argv: []string{"true"}, User: "agent:none"}, stem.BadUser},
		{"user out of range", stem.Request{Argv: []string{"true"}, User: "65536"}, stem.BadUser},
		{"user -1", stem.Request{Argv: []string{"true"}, User: "4294967295"}, stem.BadUser},
		{"argument too long", stem.Request{Argv: []string{"true", strings.Repeat("x", 200<<10)}}, stem.Limit},
		{"arguments too long", stem.Request{Argv: append([]string{"true"}, manyStrings(3<<20)...)}, stem.Limit},
		{"frame too long", stem.Request{Argv: append([]string{"true"}, manyStrings(5<<20)...)}, stem.Limit},
		{"no command", stem.Request{}, stem.BadRequest},
		{"NUL", stem.Request{Argv: []string{"true\x00"}}, stem.BadRequest},
		{"malformed id", stem.Request{ID: "../x", Argv: []string{"true"}}, stem.BadRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.req.ID == "" {
				c.req.ID = b.newID()
			}
			_, err := b.Start(t.Context(), c.req)
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %s", err, c.want)
			}
			if _, err := b.Exit(c.req.ID); c.want != stem.BadRequest && !errors.Is(err, stem.NotFound) {
				t.Fatalf("something is left: %v", err)
			}
		})
	}
	if res := b.sh(t, "echo usable"); res.stdout != "usable\n" {
		t.Fatal(res)
	}
}

func manyStrings(size int) []string {
	const each = 64 << 10
	list := make([]string, size/each)
	for i := range list {
		list[i] = strings.Repeat("a", each)
	}
	return list
}

func TestIDIsUsedOnce(t *testing.T) {
	b := newBox(t, stem.Options{})
	res := b.sh(t, "echo first")
	if _, err := b.Start(t.Context(), stem.Request{ID: res.id, Argv: []string{"true"}}); !errors.Is(err, stem.Exists) {
		t.Fatal(err)
	}
	if out, _, _, err := b.Output(res.id, stem.Stdout, 0, 100); err != nil || string(out) != "first\n" {
		t.Fatalf("%q, %v", out, err)
	}
	check(t, b.Forget(t.Context(), res.id))
	if _, err := b.Exit(res.id); !errors.Is(err, stem.NotFound) {
		t.Fatal(err)
	}
}

func TestConcurrentExecs(t *testing.T) {
	b := newBox(t, stem.Options{})
	const n = 200
	var wg sync.WaitGroup
	errs := make(chan error, n)
	for i := range n {
		wg.Go(func() {
			res, err := b.tryRun(t.Context(), stem.Request{Argv: []string{"sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i)}})
			if err == nil && (res.Code != i || res.stdout != fmt.Sprintf("%d\n", i)) {
				err = fmt.Errorf("%d: %+v", i, res)
			}
			if err == nil {
				err = b.Forget(t.Context(), res.id)
			}
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		check(t, err)
	}
	if list, err := b.List(t.Context()); err != nil || len(list) != 0 {
		t.Fatal(list, err)
	}
}

func TestSignals(t *testing.T) {
	b := newBox(t, stem.Options{})
	id := b.start(t, "sh", "-c", `trap 'echo got; exit 7' TERM; echo ready; while :; do sleep 0.01; done`)
	follow(t, b, id, "ready\n")
	check(t, b.Signal(t.Context(), id, syscall.SIGTERM, false))
	exit, err := b.Wait(t.Context(), id)
	if err != nil || exit.Code != 7 {
		t.Fatal(exit, err)
	}
	if err := b.Signal(t.Context(), id, syscall.SIGTERM, false); !errors.Is(err, stem.NotRunning) {
		t.Fatal(err)
	}
	if err := b.Signal(t.Context(), "exec_unknown", syscall.SIGTERM, false); !errors.Is(err, stem.NotFound) {
		t.Fatal(err)
	}
}

func TestGroupKill(t *testing.T) {
	b := newBox(t, stem.Options{})
	id := b.start(t, "sh", "-c", `sleep 1000 & sleep 1000 & echo ready; wait`)
	follow(t, b, id, "ready\n")
	check(t, b.Signal(t.Context(), id, syscall.SIGKILL, true))
	exit, err := b.Wait(t.Context(), id)
	if err != nil || exit.Signal != 9 {
		t.Fatal(exit, err)
	}
	until(t, "the group to end", func() bool { return len(b.inside(t)) == 2 })
}
