package pages_test

import (
	"context"
	"hash/maphash"
	"os"
	"os/exec"
	"testing"

	"cairn/criu"
	"cairn/criu/pages"
)

// holder is a program with memory of all kinds, and children that share some of it.
const holder = `
import ctypes, mmap, os, sys, threading, time, random
P = 4096
rand = random.Random(1)
def noise(n): return rand.randbytes(n * P)
ANON = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
# written, and zero but for every fifth page
holes = mmap.mmap(-1, 1024 * P, flags=ANON)
holes[:] = bytes(1024 * P)
for i in range(0, 1024, 5): holes[i*P:(i+1)*P] = noise(1)
own = mmap.mmap(-1, 2048 * P, flags=ANON); own[:] = noise(2048)
huge = mmap.mmap(-1, 8 << 20, flags=ANON); huge.madvise(14); huge[:] = bytes(8 << 20); huge[5 << 20] = 7
# a private mapping of a file: untouched, read, written, and zeroed pages
os.makedirs('/tmp/h', exist_ok=True)
open('/tmp/h/file', 'wb').write(noise(64))
f = open('/tmp/h/file', 'r+b')
private = mmap.mmap(f.fileno(), 64 * P, flags=mmap.MAP_PRIVATE)
private[8*P:16*P] = bytes(8 * P); private[16*P:20*P] = noise(4); private[30*P]
shared = mmap.mmap(-1, 256 * P, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
shared[:128*P] = noise(64) + bytes(64 * P)
memfd = os.memfd_create('kept'); os.write(memfd, noise(32) + bytes(32 * P) + noise(1))
mapped = os.memfd_create('mapped'); os.ftruncate(mapped, 64 * P)
filed = mmap.mmap(mapped, 64 * P); filed[10*P:20*P] = noise(10); filed[20*P:30*P] = bytes(10 * P)
guarded = mmap.mmap(-1, 64 * P, flags=ANON); guarded[:] = noise(64)
guarded.madvise(102, 16 * P, 4 * P)  # MADV_GUARD_INSTALL
libc = ctypes.CDLL(None)
none = mmap.mmap(-1, 64 * P, flags=ANON); none[:32*P] = bytes(16 * P) + noise(16)
libc.mprotect(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(none))), 64 * P, 0)
locked = mmap.mmap(-1, 16 * P, flags=ANON); locked[:] = bytes(8 * P) + noise(8)
libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(locked))), 16 * P)
for _ in range(3): threading.Thread(target=lambda: time.sleep(1e6), daemon=True).start()
def change(n):
    own[n*8*P:(n+1)*8*P] = os.urandom(8 * P)
    own[(n+100)*8*P:(n+101)*8*P] = bytes(8 * P)
    holes[n*P:(n+3)*P] = os.urandom(3 * P); shared[n*P:(n+1)*P] = os.urandom(P)
    private[(n+20)*P] = 1; os.pwrite(memfd, os.urandom(P), n * P); filed[n*P:(n+1)*P] = os.urandom(P)
def child(n):
    os.environ['X'] = str(n)
    own[:10*P] = bytes(10 * P)             # zero here, not in the parent
    own[20*P:30*P] = os.urandom(10 * P)    # another content
    own.madvise(4, 40 * P, 10 * P)         # MADV_DONTNEED: absent here
    holes[P:2*P] = os.urandom(P)           # zero in the parent, not here
    private[P:2*P] = bytes(P)              # zero over a file's content, untouched in the parent
    private.madvise(4, 16 * P, 2 * P)      # the file's content again, written in the parent
r, w = os.pipe()
for n in range(3):
    if os.fork() == 0:
        child(n)
        if n == 0 and os.fork() == 0:
            own[60*P:64*P] = bytes(4 * P); own[:P] = os.urandom(P)
        os.write(w, b'x')
        while True: time.sleep(1e6)
got = 0
while got < 4: got += len(os.read(r, 4))
print('ready')
for line in sys.stdin:
    word = line.strip(); change(int(word))
    print('did', word)
`

func tempDir(t testing.TB) *os.File {
	t.Helper()
	dir, err := os.MkdirTemp("", "cp-img")
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
	f, err := os.Open(dir)
	check(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func compact(t testing.TB, src, base *os.File) (*os.File, pages.Stats) {
	t.Helper()
	dst := tempDir(t)
	s, err := pages.Compact(t.Context(), src, base, dst)
	check(t, err)
	if s.Pages != s.Zero+s.Shared+s.Own {
		t.Errorf("figures: %+v", s)
	}
	t.Logf("%+v", s)
	return dst, s
}

// dump dumps the tree, which goes on, and tells what its memory was.
func (b *box) dump(t testing.TB, c *criu.CRIU, seed maphash.Seed) (*os.File, memory, criu.DumpStats) {
	t.Helper()
	images := tempDir(t)
	var m memory
	s, err := c.Dump(t.Context(), b.target(), images, criu.DumpOptions{LeaveRunning: true, Stopped: func(context.Context) error {
		m = b.readMemory(t, seed)
		return nil
	}})
	check(t, err)
	return images, m, s
}

// restored restores the tree, and tells what its memory is.
func (b *box) restored(t testing.TB, c *criu.CRIU, images *os.File, seed maphash.Seed) memory {
	t.Helper()
	var m memory
	b.clear(t, c)
	_, err := c.Restore(t.Context(), b.target(), images, criu.RestoreOptions{Restored: func(context.Context, int) error {
		m = b.readMemory(t, seed)
		return nil
	}})
	if err != nil {
		t.Fatalf("%s: %v", images.Name(), err)
	}
	b.release(t)
	return m
}

// Memory is the same, byte for byte, whatever was left out of the images.
func TestSameMemory(t *testing.T) {
	c := newCRIU(t)
	b := newBox(t)
	id := b.start(t, holder)
	seed := maphash.MakeSeed()
	plain0, m0, _ := b.dump(t, c, seed)
	full, s := compact(t, plain0, nil)
	// The parent's 820 pages of zeros, 64 of shared memory, 42 of memfds and 2047 of huge ones.
	if s.Based || s.Zero < 2800 || s.Shared < 3*2000 {
		t.Errorf("a first dump: %+v", s)
	}
	b.ask(t, id, "1")
	plain1, m1, files := b.dump(t, c, seed)
	small, s := compact(t, plain1, full)
	if !s.Based || s.Own*10 > s.Shared {
		t.Errorf("a second dump: %+v", s)
	}
	alone, s := compact(t, plain1, nil)
	if s.Based {
		t.Errorf("a second dump as a first one: %+v", s)
	}
	n := same(t, "plain", m1, b.restored(t, c, plain1, seed))
	t.Logf("%d pages compared in %d processes", n, len(m1))
	same(t, "on a base", m1, b.restored(t, c, small, seed))
	same(t, "alone", m1, b.restored(t, c, alone, seed))
	same(t, "first", m0, b.restored(t, c, full, seed))
	b.ask(t, id, "2")
	// The restored tree has shared objects of other numbers, and has the same base.
	plain2, m2, _ := b.dump(t, c, seed)
	later, s := compact(t, plain2, full)
	if !s.Based || s.Own*10 > s.Shared {
		t.Errorf("a dump of what was restored: %+v", s)
	}
	same(t, "later", m2, b.restored(t, c, later, seed))
	// Compressed and back, in another sandbox.
	f := b.fork(t, c, files.Files)
	packed, again := tempDir(t), tempDir(t)
	check(t, pages.Compress(t.Context(), small, nil, packed))
	check(t, pages.Expand(t.Context(), packed, again))
	if out, err := exec.Command("diff", "-r", small.Name(), again.Name()).CombinedOutput(); err != nil {
		t.Fatalf("expanded images differ: %s", out)
	}
	same(t, "elsewhere", m1, f.restored(t, c, small, seed))
	same(t, "expanded", m1, f.restored(t, c, again, seed))
	f.ask(t, id, "3")
}
