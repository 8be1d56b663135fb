package criu_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"cairn/criu"
	"cairn/sandbox/stem"
)

// workload is a program that has one of each resource, and answers "check" with "good"
// for as long as all of them are as it made them.
const workload = `
import fcntl, mmap, os, select, signal, socket, sys, threading, time, subprocess
os.umask(0o027)
os.makedirs('/tmp/w', exist_ok=True); os.chdir('/tmp/w')
state = {'answer': 42, 'blob': bytearray(b'abc') * 500000}
gone = open('gone', 'w+'); gone.write('deleted'); gone.flush(); os.unlink('gone')
mem = os.memfd_create('memory'); os.write(mem, b'in memory')
anon = mmap.mmap(-1, 1 << 16); anon[:6] = b'shared'
locked = open('locked', 'w'); fcntl.flock(locked, fcntl.LOCK_EX)
posix = open('posix', 'w'); fcntl.lockf(posix, fcntl.LOCK_EX)
tcp = socket.socket(); tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); tcp.bind(('127.0.0.1', 7777)); tcp.listen()
named = socket.socket(socket.AF_UNIX)
try: os.unlink('sock')
except FileNotFoundError: pass
named.bind('sock'); named.listen()
left, right = socket.socketpair(); left.send(b'under way')
r, w = os.pipe(); os.write(w, b'piped')
child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
ticks = []
def count():
    while True: time.sleep(0.01); ticks.append(1)
for _ in range(4): threading.Thread(target=count, daemon=True).start()
alarms = []
signal.signal(signal.SIGALRM, lambda *a: alarms.append(1)); signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
signal.signal(signal.SIGUSR2, lambda *a: None)
master, slave = os.openpty()
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(0o4000); libc.inotify_add_watch(watch, b'/tmp/w', 0x100)
poll = select.epoll(); poll.register(r, select.EPOLLIN)
def good():
    bad = []
    def want(name, ok):
        if not ok: bad.append(name)
    want('memory', state['answer'] == 42 and len(state['blob']) == 1500000)
    gone.seek(0); want('deleted file', gone.read() == 'deleted')
    os.lseek(mem, 0, 0); want('memfd', os.read(mem, 99) == b'in memory')
    want('shared mapping', anon[:6] == b'shared')
    try: fcntl.flock(open('locked'), fcntl.LOCK_EX | fcntl.LOCK_NB); want('flock', False)
    except BlockingIOError: pass
    c = socket.create_connection(('127.0.0.1', 7777)); a, _ = tcp.accept(); c.send(b'x'); want('listening socket', a.recv(1) == b'x'); c.close(); a.close()
    c = socket.socket(socket.AF_UNIX); c.connect('/tmp/w/sock'); a, _ = named.accept(); c.send(b'y'); want('Unix socket', a.recv(1) == b'y'); c.close(); a.close()
    data = right.recv(99); want('socket pair', data == b'under way'); left.send(data)
    want('epoll', poll.poll(0) == [(r, select.EPOLLIN)])
    data = os.read(r, 99); want('pipe', data == b'piped'); os.write(w, data)
    child.stdin.write(b'child\n'); child.stdin.flush(); want('child', child.stdout.readline() == b'child\n')
    n, m = len(ticks), len(alarms); end = time.time() + 60
    while (len(ticks) == n or len(alarms) == m) and time.time() < end: time.sleep(0.005)
    want('threads', len(ticks) > n); want('timer', len(alarms) > m)
    os.write(slave, b'tty'); want('terminal', os.read(master, 99) == b'tty')
    open('new', 'w').close(); os.unlink('new')
    want('file watch', len(os.read(watch, 4096)) > 0)
    want('directory', os.getcwd() == '/tmp/w')
    old = os.umask(0o027); want('umask', old == 0o027)
    want('signal handler', callable(signal.getsignal(signal.SIGUSR2)))
    return bad
print('ready', good())
sys.stdout.flush()
for line in sys.stdin:
    word = line.strip()
    if word == 'set': state['answer'] = 43
    print(word, good()); sys.stdout.flush()
`

// startWorkload starts the program, with a pipe to ask it by.
func (b *box) startWorkload(t testing.TB) string {
	t.Helper()
	id := fmt.Sprintf("exec_%d", b.seq.Add(1))
	_, err := b.Start(t.Context(), stem.Request{ID: id, Argv: []string{"python3", "-c", workload}, Pipe: true})
	check(t, err)
	b.says(t, id, "ready []")
	return id
}

// ask has the program check itself.
func (b *box) ask(t testing.TB, id, word string) {
	t.Helper()
	_, err := b.WriteStdin(t.Context(), id, []byte(word+"\n"))
	check(t, err)
	want := word + " []"
	if word == "set" {
		want = word + " ['memory']"
	}
	b.says(t, id, want)
}

func TestRestoreInPlace(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	id := b.startWorkload(t)
	rights := b.rights(t)
	images := newImages(t)
	s, err := c.Dump(t.Context(), b.target(), images, criu.DumpOptions{LeaveRunning: true})
	check(t, err)
	if s.Processes != 3 || s.Threads < 7 || s.Pages == 0 || s.Frozen == 0 || len(s.Files) < 3 {
		t.Errorf("figures: %+v", s)
	}
	for round := range 3 {
		b.ask(t, id, fmt.Sprint("before", round))
		b.ask(t, id, "set")
		b.restore(t, c, images)
		b.ask(t, id, fmt.Sprint("after", round))
		sameRights(t, rights, b.rights(t))
	}
	// The stem goes on with its processes, and with new ones.
	list, err := b.List(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != id || list[0].Adopted {
		t.Errorf("processes: %+v, %v", list, err)
	}
	if out := b.sh(t, "echo $((6*7))"); out != "42\n" {
		t.Errorf("a new process said %q", out)
	}
	check(t, b.CloseStdin(t.Context(), id))
	if e, err := b.Wait(t.Context(), id); err != nil || e.Code != 0 || e.Lost {
		t.Errorf("the end: %+v, %v", e, err)
	}
}

func TestFork(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	id := b.startWorkload(t)
	rights := b.rights(t)
	images := newImages(t)
	s, err := c.Dump(t.Context(), b.target(), images, criu.DumpOptions{LeaveRunning: true})
	check(t, err)
	var forks []*box
	for range 2 {
		forks = append(forks, b.fork(t, c, s.Files))
	}
	var wg sync.WaitGroup
	for _, f := range forks {
		wg.Go(func() {
			if _, err := c.Restore(t.Context(), f.target(), images, criu.RestoreOptions{}); err != nil {
				t.Errorf("%s: %v", f.name, err)
			}
		})
	}
	wg.Wait()
	for _, f := range forks {
		if t.Failed() {
			return
		}
		f.release(t)
		f.ask(t, id, "fork")
		sameRights(t, rights, f.rights(t))
	}
	forks[0].ask(t, id, "set")
	forks[1].ask(t, id, "other")
	b.ask(t, id, "first")
}

// Whether the tree goes on or is ended, files are captured while it stands still.
func TestStopped(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	id := b.start(t, "python3", "-u", "-c", "i = 0\nwhile True:\n    i += 1\n    open('/tmp/count', 'w').write(str(i))\n    if i == 1: print('ready')")
	b.says(t, id, "ready")
	failure := errors.New("no room")
	read := func() string {
		text, err := os.ReadFile(b.dir + "/upper/tmp/count")
		check(t, err)
		return string(text)
	}
	_, err := c.Dump(t.Context(), b.target(), newImages(t), criu.DumpOptions{Stopped: func(context.Context) error { return failure }})
	if !errors.Is(err, failure) {
		t.Fatalf("a failed capture: %v", err)
	}
	was := read()
	until(t, "the tree to run on", func() error {
		if read() == was {
			return errors.New("it stands still")
		}
		return nil
	})
	images := newImages(t)
	var first, second string
	_, err = c.Dump(t.Context(), b.target(), images, criu.DumpOptions{Stopped: func(context.Context) error {
		first = read()
		out := b.states(t)
		second = read()
		for pid, state := range out {
			if pid != 1 && state != "t" && state != "T" {
				t.Errorf("process %d is %s", pid, state)
			}
		}
		return nil
	}})
	check(t, err)
	if first != second {
		t.Errorf("the count went from %s to %s while everything stood still", first, second)
	}
	// It was ended.
	if left := b.states(t); len(left) > 2 {
		t.Errorf("processes are left: %v", left)
	}
	b.restore(t, c, images)
	was = read()
	until(t, "the restored tree to run", func() error {
		if read() == was {
			return errors.New("it stands still")
		}
		return nil
	})
}
