package criu_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cairn/criu"
	"cairn/sandbox/stem"

	"golang.org/x/sys/unix"
)

// sharing is a program that has shared memory of each kind mapped, and answers each line of
// its input with what that holds; "set" changes all of it first.
const sharing = `
import mmap, os, subprocess, sys
from multiprocessing import shared_memory
def mapped(name, size=8192):
    f = os.open('/dev/shm/' + name, os.O_RDWR | os.O_CREAT, 0o640); os.ftruncate(f, size)
    return f, mmap.mmap(f, size)
named = mapped('named')[1]
held, large = mapped('large', 64 << 20)
py = shared_memory.SharedMemory(create=True, size=5000, name='py')
everything = [named, large, py.buf]
for m in everything: m[4096:4099] = b'one'
child = subprocess.Popen([sys.executable, '-uc', '''
import mmap, os, sys
f = os.open('/dev/shm/named', os.O_RDWR); m = mmap.mmap(f, 8192)
for line in sys.stdin: print(bytes(m[4096:4099]).decode())
'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print('ready', flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == 'set':
        for m in everything: m[4096:4099] = b'two'
    child.stdin.write(b'x\n'); child.stdin.flush()
    seen = [bytes(m[4096:4099]).decode() for m in everything] + [child.stdout.readline().decode().strip()]
    other = os.open('/dev/shm/named', os.O_RDONLY)
    seen.append(os.pread(other, 3, 4096).decode()); os.close(other)
    print(word, *seen, flush=True)
`

func (b *box) startSharing(t testing.TB) string {
	t.Helper()
	id := fmt.Sprintf("exec_%d", b.seq.Add(1))
	_, err := b.Start(t.Context(), stem.Request{ID: id, Argv: []string{"python3", "-c", sharing}, Pipe: true})
	check(t, err)
	b.says(t, id, "ready")
	return id
}

// shares has the program tell what its memory holds.
func (b *box) shares(t testing.TB, id, word, content string) {
	t.Helper()
	_, err := b.WriteStdin(t.Context(), id, []byte(word+"\n"))
	check(t, err)
	b.says(t, id, word+strings.Repeat(" "+content, 5)+"\n")
}

// saving are the options of a dump that saves /dev/shm too.
func (b *box) saving(t testing.TB, images *os.File, s *criu.ShmStats) criu.DumpOptions {
	return criu.DumpOptions{LeaveRunning: true, Stopped: func(ctx context.Context) (err error) {
		*s, err = criu.SaveShm(ctx, b.target(), images)
		return err
	}}
}

func TestSharedMemory(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	id := b.startSharing(t)
	images := newImages(t)
	var s criu.ShmStats
	d, err := c.Dump(t.Context(), b.target(), images, b.saving(t, images, &s))
	check(t, err)
	if s.Files != 4 || s.Bytes == 0 || s.Bytes > 1<<20 {
		t.Errorf("figures %+v", s)
	}
	f := b.fork(t, c, d.Files)
	b.shares(t, id, "before", "one")
	b.shares(t, id, "set", "two")
	b.clear(t, c)
	for _, x := range []*box{b, f} {
		check(t, criu.RestoreShm(t.Context(), x.target(), images))
		_, err := c.Restore(t.Context(), x.target(), images, criu.RestoreOptions{})
		check(t, err)
		x.release(t)
		x.shares(t, id, "after", "one")
	}
	f.shares(t, id, "set", "two")
	b.shares(t, id, "apart", "one")
}

// Everything that a file there can be is as it was, also in a sandbox of other host ids.
func TestShmContent(t *testing.T) {
	b, f := newBox(t), newBox(t)
	const make = `set -e
cd /dev/shm; mkdir -p dir/sub; chmod 2750 dir; chown 7:8 dir
echo text >dir/file; chown 1000:1001 dir/file; chmod 4711 dir/file; touch -d @12345 dir/file
python3 -c 'import os
os.setxattr("dir/file", "user.color", b"blue")
f = open("sparse", "w"); f.seek(50 << 20); f.write("end"); f.truncate(60 << 20)
open(b"odd\xff\nname", "w").close()
import socket; socket.socket(socket.AF_UNIX).bind("sock")'
ln dir/file link; ln -s /etc/passwd symlink; mkfifo -m 600 pipe; : >empty
touch -d @99 dir; chmod 1770 .`
	const show = `cd /dev/shm; find . -printf '%p %y %m %U %G %s %n %l ' -a \( -type d -o -printf '%T@' \) -printf '\n' | sort
stat -c %Y dir; du -k sparse | cut -f1; cat link; tail -c +52428801 sparse | tr -d '\0'
python3 -c 'import os; print(os.getxattr("link", "user.color")); print(os.stat("link").st_ino == os.stat("dir/file").st_ino)'`
	if out := b.sh(t, make); out != "" {
		t.Fatal(out)
	}
	want := b.sh(t, show)
	images := newImages(t)
	s, err := criu.SaveShm(t.Context(), b.target(), images)
	check(t, err)
	if s.Bytes > 1<<20 {
		t.Errorf("holes were saved: %+v", s)
	}
	// What was there goes, even what is hard to remove and what leads away.
	f.sh(t, `cd /dev/shm; ln -s / away; ln -s /run/cairn shared; mkdir dir; chmod 0 dir; touch '-rf' sparse
python3 -c 'import os
for i in range(300): os.mkdir("deep"); os.chdir("deep")'`)
	check(t, criu.RestoreShm(t.Context(), f.target(), images))
	if got := f.sh(t, show); got != want {
		t.Errorf("there was\n%s\nand is\n%s", want, got)
	}
	// Nothing was saved: it becomes empty.
	empty := newImages(t)
	check(t, criu.RestoreShm(t.Context(), f.target(), empty))
	if out := f.sh(t, "ls -A /dev/shm; stat -c '%a %u %g' /dev/shm"); out != "1777 0 0\n" {
		t.Errorf("it has %s", out)
	}
	_, err = criu.SaveShm(t.Context(), f.target(), empty)
	check(t, err)
	if files, err := filepath.Glob(empty.Name() + "/*"); err != nil || len(files) != 0 {
		t.Errorf("of nothing, %v was saved: %v", files, err)
	}
	if _, err := os.Stat(f.dir + "/io"); err != nil {
		t.Error(err)
	}
}

func TestShmRefusals(t *testing.T) {
	b := newBox(t)
	if out := b.sh(t, `cd /dev/shm; python3 -c 'import os
for i in range(100): os.mkdir("deep"); os.chdir("deep")'; head -c 3000000 /dev/zero >large`); out != "" {
		t.Fatal(out)
	}
	images := newImages(t)
	_, err := criu.SaveShm(t.Context(), b.target(), images)
	var e *criu.Error
	if !errors.As(err, &e) || e.Code != criu.CodeUnsupported {
		t.Errorf("too deep: %v", err)
	}
	if files, err := filepath.Glob(images.Name() + "/*"); err != nil || len(files) != 0 {
		t.Errorf("%v is left: %v", files, err)
	}
	b.sh(t, "rm -r /dev/shm/deep")
	_, err = criu.SaveShm(t.Context(), b.target(), images)
	check(t, err)
	for name, change := range map[string][2]string{
		"a path that leads away": {`"Name":"bGFyZ2U="`, `"Name":"Li4vbGFyZ2U="`}, // ../large
		"an unknown owner":       {`"UID":0`, `"UID":70000`},
		"nonsense":               {`{`, `[`},
	} {
		text, err := os.ReadFile(images.Name() + "/shm.json")
		check(t, err)
		altered := newImages(t)
		check(t, os.WriteFile(altered.Name()+"/shm.json", []byte(strings.ReplaceAll(string(text), change[0], change[1])), 0o600))
		check(t, os.Link(images.Name()+"/shm.img", altered.Name()+"/shm.img"))
		if err := criu.RestoreShm(t.Context(), b.target(), altered); err == nil {
			t.Errorf("%s was restored", name)
		}
	}
	// A smaller /dev/shm than the one that was saved.
	small := newBox(t)
	fs, err := unix.Fspick(unix.AT_FDCWD, fmt.Sprintf("/proc/%d/root/dev/shm", small.pid), unix.FSPICK_CLOEXEC)
	check(t, err)
	check(t, unix.FsconfigSetString(fs, "size", "1m"))
	check(t, unix.FsconfigReconfigure(fs))
	check(t, unix.Close(fs))
	err = criu.RestoreShm(t.Context(), small.target(), images)
	if !errors.As(err, &e) || e.Code != criu.CodeNoSpace {
		t.Errorf("too large: %v", err)
	}
	err = criu.RestoreShm(t.Context(), criu.Target{PID: 1 << 22}, images)
	if !errors.As(err, &e) || e.Code != criu.CodeGone {
		t.Errorf("no such sandbox: %v", err)
	}
}
