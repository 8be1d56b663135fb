package criu_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"cairn/criu"
	"cairn/sandbox/stem"
)

// systemV is a program that has System V objects: a segment that it and its child have
// attached, as a user of its own, one that was removed meanwhile, semaphores and a queue.
const systemV = `
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True); libc.shmat.restype = ctypes.c_void_p
def ok(r):
    if r is None or r == -1 or r == 2**64 - 1: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return r
os.setgid(71); os.setuid(70)
size = 8 << 20
seg = ok(libc.shmget(1234, size, 0o1640)); mem = ok(libc.shmat(seg, None, 0))
private = ok(libc.shmget(0, 5000, 0o1600)); hidden = ok(libc.shmat(private, None, 0)); ok(libc.shmctl(private, 0, None))
sem = ok(libc.semget(5678, 3, 0o1600))
queue = ok(libc.msgget(99, 0o1600))
def send(t, b): ok(libc.msgsnd(queue, ctypes.c_char_p(t.to_bytes(8, 'little') + b), len(b), 0o4000))
def put(b):
    ctypes.memmove(mem + (4 << 20), b, 3); ctypes.memmove(hidden + 4096, b, 3)
    ok(libc.semctl(sem, 1, 16, int.from_bytes(b[:1], 'little')))
r, w = os.pipe(); r2, w2 = os.pipe()
if os.fork() == 0:
    while os.read(r, 1): os.write(w2, ctypes.string_at(mem + (4 << 20), 3))
    os._exit(0)
put(b'one'); send(7, b'first'); send(3, b'second')
def look():
    seen = [ctypes.string_at(mem + (4 << 20), 3).decode(), ctypes.string_at(hidden + 4096, 3).decode()]
    os.write(w, b'x'); seen.append(os.read(r2, 3).decode())
    seen.append('one' if libc.semctl(sem, 1, 12) == ord('o') else 'two')
    again = ok(libc.shmat(ok(libc.shmget(1234, 0, 0)), None, 0)); seen.append(ctypes.string_at(again + (4 << 20), 3).decode()); libc.shmdt(ctypes.c_void_p(again))
    return ' '.join(seen)
print('ready', flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == 'set': put(b'two')
    if word == 'receive':
        buf = ctypes.create_string_buffer(100)
        for i in range(2): n = ok(libc.msgrcv(queue, buf, 90, 0, 0o4000)); print(int.from_bytes(buf.raw[:8], 'little'), buf.raw[8:8+n].decode(), end=' ')
    print(word, look(), flush=True)
`

// ipcTable is what the kernel says of the objects, but for processes and times.
func (b *box) ipcTable(t testing.TB) string {
	t.Helper()
	return b.sh(t, `awk '{print $1,$2,$3,$4,$8,$9,$10,$11}' /proc/sysvipc/shm; awk '{print $1,$2,$3,$4,$5,$6,$7,$8}' /proc/sysvipc/sem; awk '{print $1,$2,$3,$4,$5,$8,$9,$10,$11}' /proc/sysvipc/msg`)
}

// withoutRemoved is the table without the segments that were marked to be removed.
func withoutRemoved(table string) string {
	var out []string
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); len(f[2]) < 4 {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

func TestSystemV(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	// Ids that a new container would not give by itself.
	b.sh(t, `python3 -c 'import ctypes
l = ctypes.CDLL(None)
for i in range(3): l.shmctl(l.shmget(0, 100, 0o1600), 0, None); l.semctl(l.semget(0, 1, 0o1600), 0, 0)
l.shmget(77, 100, 0o1600)'`)
	id := fmt.Sprintf("exec_%d", b.seq.Add(1))
	_, err := b.Start(t.Context(), stem.Request{ID: id, Argv: []string{"python3", "-c", systemV}, Pipe: true})
	check(t, err)
	b.says(t, id, "ready")
	images := newImages(t)
	d, err := c.Dump(t.Context(), b.target(), images, criu.DumpOptions{LeaveRunning: true, Stopped: func(ctx context.Context) error {
		return criu.SaveIPC(ctx, b.target(), images)
	}})
	check(t, err)
	// What was removed lives on in who has it attached alone.
	table := withoutRemoved(b.ipcTable(t))
	if fi, err := os.Stat(images.Name() + "/ipc.img"); err != nil || fi.Size() > 1<<20 {
		t.Errorf("holes were saved: %v, %v", fi, err)
	}
	f := b.fork(t, c, d.Files)
	said := func(x *box, word, want string) {
		t.Helper()
		_, err := x.WriteStdin(t.Context(), id, []byte(word+"\n"))
		check(t, err)
		x.says(t, id, want+"\n")
	}
	all := func(s string) string { return strings.Repeat(" "+s, 5) }
	said(b, "before", "before"+all("one"))
	said(b, "set", "set"+all("two"))
	b.clear(t, c)
	for _, x := range []*box{b, f} {
		check(t, criu.RestoreIPC(t.Context(), x.target(), images))
		_, err := c.Restore(t.Context(), x.target(), images, criu.RestoreOptions{})
		check(t, err)
		x.release(t)
		if got := withoutRemoved(x.ipcTable(t)); got != table {
			t.Errorf("there was\n%s\nand is\n%s", table, got)
		}
		said(x, "after", "after"+all("one"))
		said(x, "receive", "7 first 3 second receive"+all("one"))
	}
	// Who attaches it anew after a restore has the content of the checkpoint.
	said(f, "set", "set two two two two one")
	said(b, "apart", "apart"+all("one"))
	// Nothing was saved: nothing is left.
	b.clear(t, c)
	check(t, criu.RestoreIPC(t.Context(), b.target(), newImages(t)))
	var e *criu.Error
	if err := criu.RestoreIPC(t.Context(), criu.Target{PID: 1 << 22}, images); !errors.As(err, &e) || e.Code != criu.CodeGone {
		t.Errorf("no such sandbox: %v", err)
	}
	empty := newImages(t)
	check(t, criu.SaveIPC(t.Context(), b.target(), empty))
	if list, err := os.ReadDir(empty.Name()); err != nil || len(list) != 0 {
		t.Errorf("of nothing, %v was saved: %v", list, err)
	}
}
