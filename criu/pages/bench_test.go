package pages_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"cairn/criu"
	"cairn/criu/pages"

	"golang.org/x/sys/unix"
)

// idle is a program with 200 MB of objects that does nothing.
const idle = `
import sys, random
rand = random.Random(1)
rows = []
while len(rows) < 430000:
    i = len(rows)
    rows.append({'id': i, 'name': 'customer %d' % rand.randrange(1 << 40), 'score': rand.random(), 'tags': ['a', str(i)]})
text = open('/proc/self/statm').read().split()
print('ready', int(text[1]) * 4 // 1024, 'MB')
for line in sys.stdin:
    print('did', line.strip())
`

// onDisk is what directories take on the disk, in bytes, a file with several names once.
func onDisk(t testing.TB, dirs ...*os.File) int64 {
	t.Helper()
	seen := map[uint64]bool{}
	var total int64
	for _, d := range dirs {
		check(t, filepath.WalkDir(d.Name(), func(path string, _ os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			var st unix.Stat_t
			if err := unix.Lstat(path, &st); err != nil {
				return err
			}
			if !seen[st.Ino] {
				seen[st.Ino] = true
				total += st.Blocks * 512
			}
			return nil
		}))
	}
	return total
}

// dumps dumps n times.
func (b *box) dumps(t testing.TB, c *criu.CRIU, n int) []*os.File {
	t.Helper()
	var all []*os.File
	for range n {
		images := tempDir(t)
		_, err := c.Dump(t.Context(), b.target(), images, criu.DumpOptions{LeaveRunning: true})
		check(t, err)
		all = append(all, images)
	}
	return all
}

// Ten checkpoints of an idle process take little more than one.
func TestTenDumps(t *testing.T) {
	c := newCRIU(t)
	b := newBox(t)
	b.start(t, idle)
	plain := b.dumps(t, c, 10)
	var small []*os.File
	var base *os.File
	var first, later time.Duration
	for i, images := range plain {
		begun := time.Now()
		dst, s := compact(t, images, base)
		if i == 0 {
			base, first = dst, time.Since(begun)
		} else {
			later += time.Since(begun)
			if !s.Based {
				t.Error("it has no base")
			}
		}
		small = append(small, dst)
	}
	one, ten, ours := onDisk(t, plain[0]), onDisk(t, plain...), onDisk(t, small...)
	t.Logf("one %d MB, ten %d MB, compacted %.1f MB; each %v to compact, the first %v", one>>20, ten>>20, float64(ours)/(1<<20), later/9, first)
	if ours > one+one/10 {
		t.Errorf("ten dumps take %d bytes, one takes %d", ours, one)
	}
}

// scattered is a program with 200 MB of which it changes every fourth page.
const scattered = `
import os, mmap, sys
m = mmap.mmap(-1, 200 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
m[:] = os.urandom(1 << 20) * 200
print('ready')
for line in sys.stdin:
    for i in range(0, len(m), 4 * 4096): m[i] ^= 1
    print('did', line.strip())
`

// BenchmarkRestore restores the same dump from plain, compacted and expanded images, in
// turn, and shows the medians.
func BenchmarkRestore(bench *testing.B) {
	for name, program := range map[string]string{"idle": idle, "forked": holder, "scattered": scattered} {
		bench.Run(name, func(bench *testing.B) { benchmarkRestore(bench, program) })
	}
}

func benchmarkRestore(bench *testing.B, program string) {
	c := newCRIU(bench)
	b := newBox(bench)
	id := b.start(bench, program)
	plain := b.dumps(bench, c, 1)
	b.ask(bench, id, "1")
	plain = append(plain, b.dumps(bench, c, 1)...)
	full, _ := compact(bench, plain[1], nil)
	base, _ := compact(bench, plain[0], nil)
	based, s := compact(bench, plain[1], base)
	if !s.Based {
		bench.Fatalf("%+v", s)
	}
	packed, expanded := tempDir(bench), tempDir(bench)
	check(bench, pages.Compress(bench.Context(), plain[1], nil, packed))
	begun := time.Now()
	check(bench, pages.Expand(bench.Context(), packed, expanded))
	bench.Logf("expanded in %v; compressed %d MB of %d MB", time.Since(begun), onDisk(bench, packed)>>20, onDisk(bench, expanded)>>20)
	kinds := []struct {
		name   string
		images *os.File
		times  []time.Duration
	}{{name: "plain", images: plain[1]}, {name: "full", images: full}, {name: "based", images: based}, {name: "expanded", images: expanded}}
	for bench.Loop() {
		for i := range kinds {
			k := &kinds[i]
			k.times = append(k.times, b.restore(bench, c, k.images).Build)
		}
	}
	for _, k := range kinds {
		slices.Sort(k.times)
		bench.ReportMetric(float64(k.times[len(k.times)/2].Microseconds())/1000, k.name+"-ms")
	}
}
