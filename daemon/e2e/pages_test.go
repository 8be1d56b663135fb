package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cairn/api/client"
	"cairn/api/types"
)

// holder is a program with some 200 MB of memory, most of it objects of Python's. It adds
// a line of its input to them, or prints a sum of all.
const holder = `
import sys, zlib
words = [str(i) * 3 for i in range(3200000)]
print('ready', flush=True)
for line in sys.stdin:
    if line != '?\n':
        words.append(line)
    sum = 0
    for i in range(0, len(words), 10000):
        sum = zlib.crc32(''.join(words[i:i+10000]).encode(), sum)
    print('<%d %08x>' % (len(words), sum), flush=True)
`

// pagesHost is a daemon with an image that has Python.
func pagesHost(t *testing.T, o options) *host {
	t.Helper()
	o.noImage = true
	h := newHost(t, o)
	f, err := os.Open(filepath.Join("..", "..", "build", "demo.tar"))
	if err != nil {
		t.Fatalf("%v (make images makes it)", err)
	}
	defer f.Close()
	ctx, cancel := request()
	defer cancel()
	h.image = ok(client.Get[types.Image](h.client.AddImageWithBody(ctx, &types.AddImageParams{Name: ptr(imageName)}, "application/x-tar", f)))(t)
	return h
}

// hold starts the holder.
func (h *host) hold(t *testing.T, id string) types.Process {
	t.Helper()
	p := ok(h.background(id, "python3", "-c", holder))(t)
	eventually(t, "the holder is ready", func() bool {
		out, err := h.output(id, p.Id)
		return err == nil && strings.HasPrefix(out, "ready\n")
	})
	return p
}

// holds gives the holder a line and returns what it says of its memory.
func (h *host) holds(t *testing.T, id, process, line string) string {
	t.Helper()
	was := strings.Count(ok(h.output(id, process))(t), ">\n")
	done(t, h.stdin(id, process, line+"\n"))
	var all string
	eventually(t, "the holder answers", func() bool {
		all = ok(h.output(id, process))(t)
		return strings.Count(all, ">\n") > was
	})
	return all[strings.LastIndexByte(all, '<'):]
}

// images gives the layers that hold processes.
func (h *host) images(t *testing.T) (list []string) {
	t.Helper()
	for _, l := range ok(h.layers())(t) {
		if _, err := os.Stat(filepath.Join(h.poolDir(), "l", l, "fs", "inventory.img")); err == nil {
			list = append(list, l)
		}
	}
	return list
}

// settled waits until all checkpoints are durable and nothing is in the pool that they do not
// need, and gives the bytes on the disk of the layers that hold processes.
func (h *host) settled(t *testing.T) int64 {
	t.Helper()
	want := 0
	for _, cp := range ok(h.checkpoints())(t) {
		eventually(t, "the checkpoints are durable", func() bool {
			return ok(h.getCheckpoint(cp.Id))(t).Durability == types.DurabilityDurable
		})
		if cp.Processes {
			want++
		}
	}
	eventually(t, "the layers of the dumps are swept", func() bool { return len(h.images(t)) == want })
	var bytes int64
	seen := map[uint64]bool{}
	for _, l := range h.images(t) {
		done(t, filepath.WalkDir(filepath.Join(h.poolDir(), "l", l), func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			var st syscall.Stat_t
			if err := syscall.Lstat(path, &st); err != nil || seen[st.Ino] {
				return err
			}
			seen[st.Ino] = true
			bytes += st.Blocks * 512
			return nil
		}))
	}
	return bytes
}

// best is the shortest time of a few.
func best(t *testing.T, fn func()) time.Duration {
	t.Helper()
	const tries = 5
	least := time.Hour
	for range tries {
		begin := time.Now()
		fn()
		least = min(least, time.Since(begin))
	}
	return least
}

// TestIdleProcessOnDisk takes ten checkpoints of a process that does nothing: they need
// little more than one. Each has the memory of its time.
func TestIdleProcessOnDisk(t *testing.T) {
	t.Parallel()
	h := pagesHost(t, options{})
	sb := ok(h.create(types.CreateSandbox{}))(t)
	p := h.hold(t, sb.Id)
	const n = 10
	var list []types.Checkpoint
	var held []string
	var plain, one int64
	for i := range n {
		held = append(held, h.holds(t, sb.Id, p.Id, fmt.Sprintf("line %d", i)))
		cp := ok(h.dump(sb.Id))(t)
		plain += cp.Sizes.ProcessBytes
		list = append(list, cp)
		if i == 0 {
			one = h.settled(t)
		}
	}
	all := h.settled(t)
	t.Logf("one checkpoint %d MB, %d of them %d MB on the disk; as they were dumped %d MB: %.3f of one, %.3f of plain ones",
		one>>20, n, all>>20, plain>>20, float64(all)/float64(one), float64(all)/float64(plain))
	if all*10 > one*13 {
		t.Errorf("%d checkpoints of an idle process take %d bytes, the first one %d", n, all, one)
	}
	if size := plain / n; size < 200<<20 {
		t.Errorf("a dump has %d bytes", size)
	}
	for _, i := range []int{4, 0, n - 1} {
		ok(h.revive(sb.Id, list[i].Id))(t)
		if got := h.holds(t, sb.Id, p.Id, "?"); got != held[i] {
			t.Errorf("restored checkpoint %d: %s, expected %s", i, got, held[i])
		}
	}
	if cp := ok(h.getCheckpoint(list[5].Id))(t); cp.Sizes.ProcessBytes*10 > one || cp.Sizes.ExclusiveBytes > one/5 || cp.Sizes.SharedBytes < one/2 {
		t.Errorf("sizes of a checkpoint that shares its memory: %+v", cp.Sizes)
	}

	// What others share stays when the first one goes, and is shared by the next.
	done(t, h.deleteCheckpoint(list[0].Id))
	ok(h.verify(list[n-1].Id))(t)
	child := ok(h.forkDump(list[n-1].Id))(t)
	if got := h.holds(t, child.Id, p.Id, "?"); got != held[n-1] {
		t.Errorf("forked: %s, expected %s", got, held[n-1])
	}
	of := ok(h.dump(child.Id))(t)
	ok(h.verify(of.Id))(t)
	if cp := ok(h.getCheckpoint(of.Id))(t); cp.Sizes.ProcessBytes*5 > one {
		t.Errorf("sizes of a fork's checkpoint: %+v", cp.Sizes)
	}
	done(t, h.remove(sb.Id))
	for _, cp := range list[1:] {
		done(t, h.deleteCheckpoint(cp.Id))
	}
	ok(h.revive(child.Id, of.Id))(t)
	if got := h.holds(t, child.Id, p.Id, "?"); got != held[n-1] {
		t.Errorf("restored the fork: %s, expected %s", got, held[n-1])
	}
}

// pagesOperation is what the failpoints of compaction lie on: two checkpoints, of which the
// second would share with the first.
func pagesOperation() operation {
	return operation{
		later:   true,
		prepare: (*subject).anew,
		do: func(s *subject) error {
			for range 2 {
				cp, err := s.h.dump(s.sb.Id)
				if err != nil {
					return err
				}
				s.dump = cp
				if _, err := s.h.verify(cp.Id); err != nil {
					return err
				}
			}
			return nil
		},
		check: func(s *subject, _ string) {
			s.is(after, true)
			for _, cp := range s.checkpoints() {
				ok(s.h.verify(cp.Id))(s.t)
				if cp.Processes {
					ok(s.h.revive(s.sb.Id, cp.Id))(s.t)
					s.is(after, true)
				}
			}
			s.sleepAndBack()
		},
	}
}
