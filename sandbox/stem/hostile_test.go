package stem_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"cairn/sandbox/stem"
	"cairn/sandbox/stem/wire"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// inVain is how long a client tries what can't succeed.
const inVain = 200 * time.Millisecond

// slot is a slot's directory with no sandbox behind it: the test plays a hostile one.
type slot struct {
	*stem.Client
	dir string
}

func newSlot(t *testing.T, o stem.Options) *slot {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
	dir := t.TempDir()
	w, err := stem.NewWatcher()
	check(t, err)
	t.Cleanup(func() { check(t, w.Close()) })
	o.Watcher = w
	if o.Timeout == 0 {
		o.Timeout = testPatience
	}
	c, err := stem.Open(dir, o)
	check(t, err)
	t.Cleanup(func() { check(t, c.Close()) })
	return &slot{c, dir}
}

// serve answers each connection to the slot's socket by f.
func (s *slot) serve(t *testing.T, f func(net.Conn)) {
	t.Helper()
	l, err := net.Listen("unix", s.dir+"/stem.sock")
	check(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f(conn)
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
}

const goodStatus = "cairn-status 1\nexit_code 0\nstarted_us 1\nfinished_us 2\nmaxrss_bytes 3\nutime_us 4\nstime_us 5\n"

// odd puts everything but a regular file at a path.
var odd = map[string]func(path string) error{
	"fifo":      func(path string) error { return unix.Mkfifo(path, 0o666) },
	"directory": func(path string) error { return os.Mkdir(path, 0o777) },
	"link": func(path string) error {
		if err := os.WriteFile(path+".target", []byte(goodStatus), 0o666); err != nil {
			return err
		}
		return os.Symlink(path+".target", path)
	},
	"link out":      func(path string) error { return os.Symlink("/etc/passwd", path) },
	"dangling link": func(path string) error { return os.Symlink("/no/such", path) },
	"socket": func(path string) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	},
	"device": func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) },
}

func TestOddFiles(t *testing.T) {
	for name, put := range odd {
		t.Run("status "+name, func(t *testing.T) {
			s := newSlot(t, stem.Options{})
			check(t, os.MkdirAll(s.dir+"/p/x", 0o755))
			check(t, put(s.dir+"/p/x/status"))
			if _, err := s.Wait(t.Context(), "x"); !errors.Is(err, stem.Tampered) {
				t.Fatal(err)
			}
		})
		t.Run("stdout "+name, func(t *testing.T) {
			s := newSlot(t, stem.Options{MaxOutput: 100})
			check(t, os.MkdirAll(s.dir+"/p/x", 0o755))
			check(t, put(s.dir+"/p/x/stdout"))
			if _, err := s.Wait(t.Context(), "x"); !errors.Is(err, stem.Tampered) {
				t.Fatal(err)
			}
			if _, _, _, err := s.Output("x", stem.Stdout, 0, 10); !errors.Is(err, stem.Tampered) {
				t.Fatal(err)
			}
			if err := s.Follow(t.Context(), "x", stem.Stdout, 0, func([]byte) error { return nil }); !errors.Is(err, stem.Tampered) {
				t.Fatal(err)
			}
		})
		if name != "socket" {
			t.Run("stem.sock "+name, func(t *testing.T) {
				s := newSlot(t, stem.Options{})
				check(t, put(s.dir+"/stem.sock"))
				if _, err := s.Ping(t.Context()); !errors.Is(err, stem.Tampered) {
					t.Fatal(err)
				}
			})
		}
		if name != "directory" {
			for _, path := range []string{"p", "p/x"} {
				t.Run(path+" "+name, func(t *testing.T) {
					s := newSlot(t, stem.Options{})
					if path == "p/x" {
						check(t, os.Mkdir(s.dir+"/p", 0o755))
					}
					check(t, put(s.dir+"/"+path))
					if _, err := s.Wait(t.Context(), "x"); !errors.Is(err, stem.Tampered) {
						t.Fatal(err)
					}
					_, err := s.Start(t.Context(), stem.Request{ID: "x", Argv: []string{"true"}, Stdin: strings.NewReader("in")})
					if !errors.Is(err, stem.Tampered) && !errors.Is(err, stem.Exists) {
						t.Fatal(err)
					}
				})
			}
		}
	}
}

// A directory swapped for a link to another one leads nowhere.
func TestLinkedProcessDirectory(t *testing.T) {
	s := newSlot(t, stem.Options{})
	outside := t.TempDir()
	check(t, os.WriteFile(outside+"/status", []byte(goodStatus), 0o644))
	check(t, os.Mkdir(s.dir+"/p", 0o755))
	check(t, os.Symlink(outside, s.dir+"/p/x"))
	if _, err := s.Exit("x"); !errors.Is(err, stem.Tampered) {
		t.Fatal(err)
	}
}

func TestStatusText(t *testing.T) {
	s := newSlot(t, stem.Options{})
	check(t, os.MkdirAll(s.dir+"/p/x", 0o755))
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"good":         {goodStatus, true},
		"empty":        {"", false},
		"cut":          {goodStatus[:len(goodStatus)-1], false},
		"padded":       {goodStatus + "\n", false},
		"huge":         {goodStatus + strings.Repeat("x", 1<<20), false},
		"big code":     {strings.Replace(goodStatus, "code 0", "code 256", 1), false},
		"negative":     {strings.Replace(goodStatus, "code 0", "code -1", 1), false},
		"signal 0":     {strings.Replace(goodStatus, "exit_code 0", "signal 0", 1), false},
		"signal 65":    {strings.Replace(goodStatus, "exit_code 0", "signal 65", 1), false},
		"overflow":     {strings.Replace(goodStatus, "_us 4", "_us 99999999999999999999", 1), false},
		"leading zero": {strings.Replace(goodStatus, "_us 4", "_us 04", 1), false},
	} {
		check(t, os.WriteFile(s.dir+"/p/x/status", []byte(c.text), 0o644))
		_, err := s.Wait(t.Context(), "x")
		if c.ok && err != nil || !c.ok && !errors.Is(err, stem.Tampered) {
			t.Errorf("%s: %v", name, err)
		}
	}
	check(t, os.WriteFile(s.dir+"/p/x/status", []byte(goodStatus), 0o644))
	check(t, os.Truncate(s.dir+"/p/x/status", 1<<40))
	if _, err := s.Exit("x"); !errors.Is(err, stem.Tampered) {
		t.Fatal(err)
	}
}

func TestHugeSparseOutput(t *testing.T) {
	s := newSlot(t, stem.Options{MaxOutput: 1000})
	check(t, os.MkdirAll(s.dir+"/p/x", 0o755))
	check(t, os.WriteFile(s.dir+"/p/x/stdout", nil, 0o644))
	check(t, os.Truncate(s.dir+"/p/x/stdout", 1<<42))
	data, eof, next, err := s.Output("x", stem.Stdout, 1<<41, 100)
	if err != nil || eof || len(data) != 100 || next != 1<<41+100 {
		t.Fatal(len(data), eof, next, err)
	}
	if _, err := s.Wait(t.Context(), "x"); !errors.Is(err, stem.OutputLimit) {
		t.Fatal(err)
	}
	// Cut short behind the reader's back.
	check(t, os.Truncate(s.dir+"/p/x/stdout", 0))
	if data, _, next, err := s.Output("x", stem.Stdout, 50, 100); err != nil || len(data) != 0 || next != 50 {
		t.Fatal(data, next, err)
	}
}

func TestHostileAnswers(t *testing.T) {
	reply := func(kind wire.Kind, payload string) string {
		f, err := wire.AppendFrame(nil, kind, []byte(payload))
		check(t, err)
		return string(f)
	}
	for name, c := range map[string]struct {
		send string
		want stem.Code
	}{
		"closes":           {"", stem.Unreachable},
		"huge":             {"\xff\xff\xff\xff", stem.Protocol},
		"above the bound":  {"\x00\x20\x00\x00\x01\x80", stem.Protocol},
		"no body":          {"\x00\x00\x00\x00", stem.Protocol},
		"other version":    {"\x00\x00\x00\x02\x02\x80", stem.Protocol},
		"odd kind":         {reply(7, ""), stem.Protocol},
		"unknown code":     {reply(wire.KindError, "\x03odd\x00"), stem.Protocol},
		"malformed error":  {reply(wire.KindError, "\x7f"), stem.Protocol},
		"known code":       {reply(wire.KindError, "\x04busy\x00"), stem.Busy},
		"empty success":    {reply(wire.KindOK, ""), stem.Protocol},
		"pid out of range": {reply(wire.KindOK, "\xff\xff\xff\xff\x7f"), stem.Protocol},
	} {
		t.Run(name, func(t *testing.T) {
			o := stem.Options{}
			if c.send == "" {
				o.Timeout = inVain
			}
			s := newSlot(t, o)
			s.serve(t, func(conn net.Conn) {
				// It may go before it has read, or be left before it has written.
				_, _, _ = wire.ReadFrame(conn, wire.MaxFrame)
				_, _ = conn.Write([]byte(c.send))
			})
			if _, err := s.Ping(t.Context()); !errors.Is(err, c.want) {
				t.Fatal(err)
			}
		})
	}
}

func TestNeverAnswers(t *testing.T) {
	s := newSlot(t, stem.Options{Timeout: inVain})
	release := make(chan struct{})
	s.serve(t, func(net.Conn) { <-release })
	defer close(release)
	if _, err := s.Ping(t.Context()); !errors.Is(err, stem.Unreachable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errEnough)
	if _, err := s.Ping(ctx); !errors.Is(err, stem.Unreachable) || !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
}

// The status may be written before, while and after the watch is set.
func TestWaitIsNeverMissed(t *testing.T) {
	s := newSlot(t, stem.Options{})
	s.WithoutTick()
	for i := range 300 {
		id := fmt.Sprintf("x%d", i)
		dir := s.dir + "/p/" + id
		check(t, os.MkdirAll(dir, 0o755))
		wrote := make(chan error, 1)
		go func() {
			if err := os.WriteFile(dir+"/status.new", []byte(goodStatus), 0o644); err != nil {
				wrote <- err
				return
			}
			wrote <- os.Rename(dir+"/status.new", dir+"/status")
		}()
		ctx, cancel := context.WithTimeout(t.Context(), testPatience)
		_, err := s.Wait(ctx, id)
		cancel()
		check(t, <-wrote)
		check(t, err)
	}
}

func TestClosed(t *testing.T) {
	s := newSlot(t, stem.Options{})
	check(t, s.Close())
	if _, err := s.Ping(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Fatal(err)
	}
	if _, err := s.Exit("x"); !errors.Is(err, os.ErrClosed) {
		t.Fatal(err)
	}
}
