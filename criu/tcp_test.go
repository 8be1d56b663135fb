package criu_test

import (
	"fmt"
	"strings"
	"testing"

	"cairn/criu"
	"cairn/sandbox/stem"
)

// connected is a program with TCP connections in each state. It tells for each line of its
// input what it sees of them.
const connected = `
import errno, select, socket, sys
def listen(backlog=5):
    s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(backlog); return s
def dial(s):
    c = socket.socket(); c.connect(s.getsockname()); return c
s = listen(); left = dial(s); right = s.accept()[0]
left.send(b'unread')
half = dial(s); other = s.accept()[0]; half.shutdown(socket.SHUT_WR)
queue = listen(); waiting = dial(queue); waiting.send(b'hello')
six = socket.socket(socket.AF_INET6); six.bind(('::1', 0)); six.listen()
six_left = socket.socket(socket.AF_INET6); six_left.connect(six.getsockname()); six_right = six.accept()[0]
closed = dial(s); s.accept()[0].close()
bound = socket.socket(); bound.bind(('127.0.0.1', 0))
def name(f):
    try: return repr(f())
    except OSError as e: return errno.errorcode.get(e.errno, 'timeout')
def see(c):
    c.setblocking(False)
    got = [name(lambda: c.recv(9)), name(lambda: c.send(b'x')), name(c.getpeername)]
    p = select.poll(); p.register(c, select.POLLIN | select.POLLOUT)
    got.append(str([e for _, e in p.poll(0)]))
    return ' '.join(got)
print('ready', flush=True)
for line in sys.stdin:
    for what, c in dict(left=left, right=right, half=half, other=other, waiting=waiting, six_left=six_left, six_right=six_right, closed=closed).items(): print(what, see(c))
    for what, l in dict(s=s, queue=queue).items():
        l.setblocking(False); print(what, 'accepts', name(l.accept))
        l.setblocking(True); c = dial(l); a = l.accept()[0]; c.send(b'new'); print(what, a.recv(9), flush=True)
    bound.listen(); c = dial(bound); bound.accept(); print('done', flush=True)
`

// Listening sockets go on. Connections are gone, in the sandbox and to the outside alike:
// they are sockets that are not connected.
func TestConnections(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	id := fmt.Sprintf("exec_%d", b.seq.Add(1))
	_, err := b.Start(t.Context(), stem.Request{ID: id, Argv: []string{"python3", "-c", connected}, Pipe: true})
	check(t, err)
	b.says(t, id, "ready")
	images := newImages(t)
	d, err := c.Dump(t.Context(), b.target(), images, criu.DumpOptions{LeaveRunning: true})
	check(t, err)
	f := b.fork(t, c, d.Files)
	b.clear(t, c)
	for _, x := range []*box{b, f} {
		_, err := c.Restore(t.Context(), x.target(), images, criu.RestoreOptions{})
		check(t, err)
		x.release(t)
		_, err = x.WriteStdin(t.Context(), id, []byte("see\n"))
		check(t, err)
		x.says(t, id, "done")
		out := x.output(t, id)
		// The end of the stream, a broken pipe, and all that poll(2) knows of it.
		for _, who := range []string{"left", "right", "half", "other", "waiting", "six_left", "six_right", "closed"} {
			if want := who + " b'' EPIPE ENOTCONN [21]\n"; !strings.Contains(out, want) {
				t.Errorf("want %sin\n%s", want, out)
			}
		}
		for _, who := range []string{"s", "queue"} {
			if want := who + " accepts EAGAIN\n" + who + " b'new'\n"; !strings.Contains(out, want) {
				t.Errorf("want %sin\n%s", want, out)
			}
		}
	}
}
