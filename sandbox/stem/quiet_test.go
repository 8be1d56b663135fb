package stem_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"cairn/sandbox/stem"

	"golang.org/x/sys/unix"
)

// connections counts the stem's connections: its sockets but the one it listens on.
func (b *box) connections(t *testing.T, stemPID int) int {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd/", stemPID)
	fds, err := os.ReadDir(dir)
	check(t, err)
	n := -1
	for _, fd := range fds {
		// One that is gone meanwhile is not open.
		if to, err := os.Readlink(dir + fd.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

func TestQuiet(t *testing.T) {
	b := newBox(t, stem.Options{})
	pid := b.hostPID(t)
	conn, err := net.Dial("unix", b.io+"/stem.sock")
	check(t, err)
	until(t, "a connection", func() bool { return b.connections(t, pid) == 1 })
	check(t, conn.Close())
	until(t, "its end", func() bool { return b.connections(t, pid) == 0 })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var through atomic.Int64
	var busy sync.WaitGroup
	for range 8 {
		busy.Go(func() {
			for ctx.Err() == nil {
				if _, err := b.List(ctx); err == nil {
					through.Add(1)
				}
			}
		})
	}
	for range 50 {
		before := through.Load()
		until(t, "a request", func() bool { return through.Load() > before })
		release, err := b.Quiet(t.Context())
		check(t, err)
		if n := b.connections(t, pid); n != 0 {
			t.Errorf("%d connections", n)
		}
		release()
		release() // once is enough
	}
	release, err := b.Quiet(t.Context())
	check(t, err)
	short, stop := context.WithCancelCause(t.Context())
	stop(errEnough)
	if _, err := b.Quiet(short); !errors.Is(err, errEnough) {
		t.Error(err)
	}
	if _, err := b.Ping(short); !errors.Is(err, errEnough) {
		t.Error(err)
	}
	release()
	_, err = b.Ping(t.Context())
	check(t, err)
	cancel()
	busy.Wait()
}

// Of a terminal's output the last is kept, for as long as it runs, under its offsets.
func TestTerminalKeepsTheLast(t *testing.T) {
	const keep = 1 << 20
	b := newBox(t, stem.Options{})
	p := newPTY(t, b, stem.Request{Argv: []string{"bash", "-c", "seq 1000000; echo last; read -r x"}})
	waited := make(chan error, 1)
	go func() {
		_, err := p.WaitKeeping(t.Context(), p.id, keep)
		waited <- err
	}()
	path := b.io + "/p/" + p.id + "/stdout"
	until(t, "the cut", func() bool {
		var st unix.Stat_t
		check(t, unix.Stat(path, &st))
		return st.Size == 7888896+6 && st.Blocks*512 <= keep+keep/4
	})
	start, end, err := p.OutputRange(p.id, stem.Stdout)
	if err != nil || end != 7888896+6 || end-start < keep || end-start > keep+keep/4 {
		t.Fatal(start, end, err)
	}
	data, _, next, err := p.Output(p.id, stem.Stdout, start, 2*keep)
	if err != nil || next != end || bytes.IndexByte(data, 0) >= 0 || !strings.HasSuffix(string(data), "1000000\r\nlast\r\n") {
		t.Fatalf("%d %d %v %q", next, end, err, data[max(0, len(data)-100):])
	}
	check(t, b.Signal(t.Context(), p.id, syscall.SIGKILL, true))
	check(t, <-waited)
	if _, _, err := p.OutputRange("exec_unknown", stem.Stdout); !errors.Is(err, stem.NotFound) {
		t.Fatal(err)
	}
	empty := newPTY(t, b, stem.Request{Argv: []string{"true"}})
	empty.end(t)
	if start, end, err := b.OutputRange(empty.id, stem.Stdout); start != 0 || end != 0 || err != nil {
		t.Fatal(start, end, err)
	}
}
