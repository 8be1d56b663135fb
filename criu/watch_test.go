package criu_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"cairn/criu"
	"cairn/sandbox/stem"
)

// watcher watches the paths it is given, and names on each line of its input those that
// have been touched since.
const watcher = `
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init1(0o4000)
paths = sys.argv[1:]
for p in paths:
    if libc.inotify_add_watch(fd, p.encode(), 0x20) < 0: print('no watch of', p, os.strerror(ctypes.get_errno()))
print('ready', flush=True)
for line in sys.stdin:
    wds = set()
    try:
        data = os.read(fd, 1 << 16)
        while data:
            n = int.from_bytes(data[12:16], 'little')
            wds.add(int.from_bytes(data[:4], 'little')); data = data[16+n:]
    except BlockingIOError: pass
    print(line.strip(), sorted(wds), flush=True)
`

func (b *box) startWatcher(t testing.TB, paths ...string) string {
	t.Helper()
	id := fmt.Sprintf("exec_%d", b.seq.Add(1))
	_, err := b.Start(t.Context(), stem.Request{ID: id, Argv: append([]string{"python3", "-c", watcher}, paths...), Pipe: true})
	check(t, err)
	b.says(t, id, "ready")
	return id
}

// notices checks that each path that is opened reaches its watch.
func (b *box) notices(t testing.TB, id, word string, paths ...string) {
	t.Helper()
	var all []string
	for i, p := range paths {
		all = append(all, fmt.Sprint(i+1))
		if out := b.sh(t, "exec 3<"+p); out != "" {
			t.Errorf("%s: %s", p, out)
		}
	}
	_, err := b.WriteStdin(t.Context(), id, []byte(word+"\n"))
	check(t, err)
	b.says(t, id, fmt.Sprintf("%s [%s]\n", word, strings.Join(all, ", ")))
}

// Watches come back wherever the file is: in the upper layer or a lower one, copied up, on
// another mount, and named by a path that was moved.
func TestWatches(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	b.sh(t, "mkdir -p /tmp/dir/sub; echo x >/tmp/dir/file; echo y >/tmp/dir/hard; ln /tmp/dir/hard /tmp/dir/sub/link; echo z >/dev/shm/z; mv /tmp/dir/sub /tmp/dir/moved")
	copied := b.dir + "/root/etc/issue"
	text, err := os.ReadFile(copied)
	check(t, err)
	check(t, os.WriteFile(copied, append(text, '\n'), 0o644))
	paths := []string{"/", "/tmp/dir", "/tmp/dir/file", "/tmp/dir/hard", "/tmp/dir/moved/link", "/etc/passwd", "/usr/lib", "/etc/issue", "/dev/shm/z", "/dev", "/run/cairn", "/etc"}
	// A second watch of the same file is the same watch.
	paths = append(paths[:3], paths[4:]...)
	id := b.startWatcher(t, paths...)
	b.notices(t, id, "before", paths...)
	images := newImages(t)
	_, err = c.Dump(t.Context(), b.target(), images, criu.DumpOptions{LeaveRunning: true})
	check(t, err)
	b.notices(t, id, "running", paths...)
	b.restore(t, c, images)
	b.notices(t, id, "restored", paths...)
}

// The file of a watch that has no path any more.
func TestLostWatch(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	b.sh(t, "echo x >/tmp/lost")
	id := b.startWatcher(t, "/tmp/lost")
	// Held open, it keeps its watch.
	holder := b.start(t, "/bin/sh", "-c", "exec 3</tmp/lost; rm /tmp/lost; echo gone; exec sleep 1000")
	b.says(t, holder, "gone")
	b.refused(t, c, criu.CodeUnsupported, "", "file watch")
	b.notices(t, id, "still", "/proc/$(pgrep -n sleep)/fd/3")
}

// The time that a watch costs does not depend on how many files there are.
func BenchmarkWatch(b *testing.B) {
	for _, files := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("%d files", files), func(b *testing.B) {
			c := newCRIU(b, nil)
			x := newBox(b)
			x.sh(b, fmt.Sprintf("mkdir -p /opt/many; cd /opt/many; python3 -c 'import os\nfor i in range(%d):\n  d = str(i // 1000)\n  os.makedirs(d, exist_ok=True)\n  open(d + \"/\" + str(i), \"w\").close()'; mkdir -p /tmp/w; echo >/tmp/w/last", files))
			x.startWatcher(b, "/tmp/w/last")
			var frozen, freeze time.Duration
			for b.Loop() {
				dir := b.TempDir()
				images, err := os.Open(dir)
				check(b, err)
				s, err := c.Dump(b.Context(), x.target(), images, criu.DumpOptions{LeaveRunning: true})
				check(b, err)
				frozen, freeze = frozen+s.Frozen, freeze+s.Freeze
				check(b, images.Close())
			}
			b.ReportMetric(float64((frozen+freeze).Microseconds())/1000/float64(b.N), "stopped-ms")
		})
	}
}
