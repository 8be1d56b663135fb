package criu_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"cairn/criu"
	"cairn/sandbox/stem"
)

// mapper is a program that has deleted files mapped, and a child that shares what can be
// shared. For each line of its input, both write to what they share, and it tells what is
// not as it should be.
const mapper = `
import ctypes, mmap, os, shutil, sys
os.makedirs('/tmp/m')
def gone(path, size=8192):
    f = open(path, 'w+b'); f.write(b'%s of old ' % path.encode()); f.truncate(size); f.flush(); os.unlink(path); return f
def shared(fd): return mmap.mmap(fd, 8192)
f = gone('/tmp/m/shared'); one = shared(f.fileno()); f.close()
f = gone('/dev/shm/shared'); two = shared(f.fileno()); f.close()
f = gone('/tmp/m/private'); private = mmap.mmap(f.fileno(), 8192, mmap.MAP_PRIVATE); private[100:103] = b'own'; f.close()
f = gone('/tmp/m/open'); openfd = os.dup(f.fileno()); both = shared(f.fileno())
gone('/tmp/m/twin').close(); twins = []
for text in b'first', b'second':
    f = gone('/tmp/m/twin'); f.seek(0); f.write(text); f.flush(); twins.append(shared(f.fileno())); f.close()
mem = os.memfd_create('memory'); os.truncate(mem, 8192); memory = shared(mem)
os.pwrite(mem, b'written', 0)
lone = os.memfd_create('lone'); os.truncate(lone, 8192); os.pwrite(lone, b'lonely', 0); alone = shared(lone); os.close(lone)
copied = os.memfd_create('copied'); os.truncate(copied, 8192); os.pwrite(copied, b'kept', 0)
copy = mmap.mmap(copied, 8192, mmap.MAP_PRIVATE); copy[4096:4099] = b'own'
nameless = shared(-1); nameless[:5] = b'plain'
libm = [l.split()[-1] for l in open('/proc/self/maps') if '/libc.so.6' in l][0].replace('libc.so', 'libm.so')
shutil.copy(libm, '/tmp/m/libold.so'); lib = ctypes.CDLL('/tmp/m/libold.so')
open('/tmp/m/libnew.so', 'w').write('not a library'); os.rename('/tmp/m/libnew.so', '/tmp/m/libold.so')
lib.cos.restype = ctypes.c_double; lib.cos.argtypes = [ctypes.c_double]
shutil.copy('/bin/sleep', '/tmp/m/old-sleep')
if os.fork() == 0: os.execv('/tmp/m/old-sleep', ['old-sleep', '1000'])
r, w = os.pipe(); r2, w2 = os.pipe()
everything = dict(one=one, two=two, both=both, twin1=twins[0], twin2=twins[1], memory=memory, alone=alone, nameless=nameless)
if os.fork() == 0:
    while True:
        word = os.read(r, 99)
        for m in everything.values(): m[4096:4096+len(word)] = word
        os.write(w2, b'x')
def good(word):
    bad = []
    def want(name, got, expected):
        if got != expected: bad.append('%s %r' % (name, got))
    os.write(w, word); os.read(r2, 1)
    for name, m in everything.items(): want(name, m[4096:4096+len(word)], word)
    want('shared', one[:13], b'/tmp/m/shared'); want('shm', two[:15], b'/dev/shm/shared')
    want('private', private[:14], b'/tmp/m/private'); want('private', private[100:103], b'own')
    want('twin 1', twins[0][:5], b'first'); want('twin 2', twins[1][:6], b'second')
    want('memfd', memory[:7], b'written'); want('memfd read', os.pread(mem, len(word), 4096), word)
    os.pwrite(mem, word, 200); want('memfd write', memory[200:200+len(word)], word)
    want('lone', alone[:6], b'lonely'); want('nameless', nameless[:5], b'plain')
    want('copied', copy[:4], b'kept'); want('copied', copy[4096:4099], b'own'); want('copied read', os.pread(copied, 4, 0), b'kept')
    want('open file', os.pread(openfd, len(word), 4096), word)
    want('library', lib.cos(0.0), 1.0)
    return bad
print('ready', good(b'ready')); sys.stdout.flush()
for line in sys.stdin:
    word = line.strip(); print(word, good(word.encode())); sys.stdout.flush()
`

// startMapper starts the program.
func (b *box) startMapper(t testing.TB) string {
	t.Helper()
	id := fmt.Sprintf("exec_%d", b.seq.Add(1))
	_, err := b.Start(t.Context(), stem.Request{ID: id, Argv: []string{"python3", "-c", mapper}, Pipe: true})
	check(t, err)
	b.says(t, id, "ready [")
	if out := b.output(t, id); !strings.Contains(out, "ready []") {
		t.Fatal(out)
	}
	return id
}

func TestDeletedMapped(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	id := b.startMapper(t)
	b.sh(t, "until pgrep -x old-sleep; do :; done; rm /tmp/m/old-sleep")
	for round := range 2 {
		images := newImages(t)
		s, err := c.Dump(t.Context(), b.target(), images, criu.DumpOptions{LeaveRunning: true})
		check(t, err)
		b.ask(t, id, fmt.Sprint("running-", round))
		f := b.fork(t, c, s.Files)
		_, err = c.Restore(t.Context(), f.target(), images, criu.RestoreOptions{})
		check(t, err)
		f.release(t)
		b.restore(t, c, images)
		for _, x := range []*box{b, f} {
			x.ask(t, id, fmt.Sprint("restored-", round))
			x.ask(t, id, fmt.Sprint("again-", round))
			x.seq.Store(b.seq.Load())
			if out := x.sh(t, "ls /tmp/m /dev/shm | xargs"); out != "/dev/shm: /tmp/m: libold.so\n" {
				t.Errorf("files that were deleted are there: %s", out)
			}
		}
	}
}

// A file that is deleted after CRIU was started is found too, or the dump is refused.
func TestDeletedMeanwhile(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	id := b.start(t, "python3", "-u", "-c", `
import mmap, time
f = open('/tmp/later', 'w+b'); f.write(b'later'); f.truncate(8192); m = mmap.mmap(f.fileno(), 8192); f.close(); print('ready')
while True:
    time.sleep(0.01); open('/tmp/seen', 'wb').write(m[:5])`)
	b.says(t, id, "ready")
	p, err := c.PrepareDump(t.Context(), b.target(), newImages(t))
	check(t, err)
	b.sh(t, "rm /tmp/later")
	_, err = p.Dump(t.Context(), criu.DumpOptions{LeaveRunning: true})
	check(t, err)
	// CRIU takes a memfd for other memory, and does not fail.
	id = b.start(t, "python3", "-u", "-c", "import time, os, mmap\nm = None\nwhile True:\n  time.sleep(0.01)\n  if m is None and os.path.exists('/tmp/go'):\n    f = os.memfd_create('late'); os.truncate(f, 8192); m = mmap.mmap(f, 8192); print('made')\n")
	b.sh(t, "pkill -f /tmp/later; true")
	until(t, "the first one to end", func() error {
		if len(b.states(t)) > 3 {
			return errors.New("it is there")
		}
		return nil
	})
	p, err = c.PrepareDump(t.Context(), b.target(), newImages(t))
	check(t, err)
	b.sh(t, "touch /tmp/go")
	b.says(t, id, "made")
	_, err = p.Dump(t.Context(), criu.DumpOptions{LeaveRunning: true})
	var e *criu.Error
	if !errors.As(err, &e) || e.Code != criu.CodeFailed || !strings.Contains(e.Message, "try again") {
		t.Fatalf("error %v", err)
	}
	_, err = c.Dump(t.Context(), b.target(), newImages(t), criu.DumpOptions{LeaveRunning: true})
	check(t, err)
}
