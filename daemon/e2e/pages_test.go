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
import sys, zlib, random
rand = random.Random(1)
words = [str(rand.random()) for i in range(3000000)]
print('ready', flush=True)
for line in sys.stdin:
    if line != '?\n':
        words.append(line)
    sum = 0
    for i in range(0, len(words), 10000):
        sum = zlib.crc32(''.join(words[i:i+10000]).encode(), sum)
    print('<%d %08x>' % (len(words), sum), flush=True)
`

// pagesHost is a daemon with an image that has Python. It has much memory to compare and to
// compress, which the race detector makes very slow.
func pagesHost(t *testing.T, o options) *host {
	t.Helper()
	o.noImage, o.plain = true, true
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

// shortly has checkpoints compressed as soon as they are durable and no sandbox needs them.
const shortly = "[pages]\ncompress_after = \"1ms\"\n"

// compressed counts the layers with compressed memory.
func (h *host) compressed(t *testing.T) int {
	t.Helper()
	n := 0
	for _, l := range h.images(t) {
		found, err := filepath.Glob(filepath.Join(h.poolDir(), "l", l, "fs", "pages-*.zst"))
		done(t, err)
		if len(found) > 0 {
			n++
		}
	}
	return n
}

// allCompressed waits until the memory of all checkpoints is compressed.
func (h *host) allCompressed(t *testing.T) {
	t.Helper()
	eventually(t, "all memory is compressed", func() bool { n := h.compressed(t); return n > 0 && n == len(h.images(t)) })
}

// twoDumps takes two checkpoints with the process. The sandbox stands on the second.
func (s *subject) twoDumps() {
	s.t.Helper()
	s.anew()
	first := ok(s.h.dump(s.sb.Id))(s.t)
	s.dump = ok(s.h.dump(s.sb.Id))(s.t)
	ok(s.h.verify(first.Id))(s.t)
	ok(s.h.verify(s.dump.Id))(s.t)
	s.h.o.extra = shortly
}

// checkDumps restores all the checkpoints with processes.
func checkDumps(s *subject, _ string) {
	s.h.o.extra = ""
	s.h.restart()
	if sb := ok(s.h.sandbox(s.sb.Id))(s.t); sb.State == types.SandboxStateStopped {
		ok(s.h.resume(sb.Id))(s.t) // killed in the middle of the restore
	}
	for _, cp := range s.checkpoints() {
		ok(s.h.verify(cp.Id))(s.t)
		if cp.Processes {
			ok(s.h.revive(s.sb.Id, cp.Id))(s.t)
			s.is(after, true)
		}
	}
	for _, cp := range s.checkpoints() {
		ok(s.h.verify(cp.Id))(s.t)
	}
	s.sleepAndBack()
}

func compressOperation() operation {
	return operation{
		later:   true,
		prepare: (*subject).twoDumps,
		do:      func(s *subject) error { _, err := s.h.checkpoint(s.sb.Id); return err }, // it stands on no dump any more
		check:   checkDumps,
	}
}

func expandOperation() operation {
	return operation{
		later: true, // what was expanded is kept in the background
		prepare: func(s *subject) {
			s.twoDumps()
			s.h.restart()
			ok(s.h.checkpoint(s.sb.Id))(s.t)
			s.h.allCompressed(s.t)
			s.h.o.extra = ""
		},
		do:    func(s *subject) error { _, err := s.h.revive(s.sb.Id, s.dump.Id); return err },
		check: checkDumps,
	}
}

// TestCompressedMemory restores from memory that is as it was dumped, shared, and compressed.
// It logs how long that takes.
func TestCompressedMemory(t *testing.T) {
	t.Parallel()
	h := pagesHost(t, options{extra: "[pages]\ncompress_after = \"\"\n", failpoints: "pages.compacted=error"})
	sb := ok(h.create(types.CreateSandbox{}))(t)
	p := h.hold(t, sb.Id)
	state := h.holds(t, sb.Id, p.Id, "?")
	fork := func(id string) func() {
		return func() {
			child := ok(h.forkDump(id))(t)
			if got := h.holds(t, child.Id, p.Id, "?"); got != state {
				t.Errorf("forked: %s, expected %s", got, state)
			}
			done(t, h.remove(child.Id))
		}
	}
	timed := func(id string) time.Duration {
		t.Helper()
		begin := time.Now()
		child := ok(h.forkDump(id))(t)
		took := time.Since(begin)
		done(t, h.remove(child.Id))
		return took
	}
	plain := ok(h.dump(sb.Id))(t)
	ok(h.verify(plain.Id))(t)
	if cp := ok(h.getCheckpoint(plain.Id))(t); cp.Sizes.ProcessBytes != plain.Sizes.ProcessBytes {
		t.Errorf("it is not as it was dumped: %+v", cp.Sizes)
	}

	h.arm("")
	base := ok(h.dump(sb.Id))(t)
	ok(h.verify(base.Id))(t)
	shares := ok(h.dump(sb.Id))(t)
	ok(h.verify(shares.Id))(t)
	if cp := ok(h.getCheckpoint(shares.Id))(t); cp.Sizes.ProcessBytes*10 > plain.Sizes.ProcessBytes {
		t.Errorf("it does not share its memory: %+v", cp.Sizes)
	}
	const tries = 3
	asDumped, compacted, sharing := time.Hour, time.Hour, time.Hour
	for range tries { // by turns: the machine may do other things at times
		asDumped, compacted, sharing = min(asDumped, timed(plain.Id)), min(compacted, timed(base.Id)), min(sharing, timed(shares.Id))
	}
	fork(shares.Id)()
	done(t, h.deleteCheckpoint(plain.Id))
	was := h.settled(t)

	done(t, h.remove(sb.Id))
	h.o.extra = shortly
	h.restart()
	h.allCompressed(t)
	is := h.settled(t)
	for _, id := range []string{base.Id, shares.Id} {
		if cp := ok(h.verify(id))(t); cp.Durability != types.DurabilityDurable {
			t.Errorf("a compressed checkpoint is %s", cp.Durability)
		}
	}
	if is*2 > was {
		t.Errorf("%d bytes compressed, %d before", is, was)
	}
	expanding := time.Hour
	for range tries {
		h.allCompressed(t)
		expanding = min(expanding, timed(shares.Id))
	}
	t.Logf("two checkpoints: %d MB on the disk, compressed %d MB (%.2f)", was>>20, is>>20, float64(is)/float64(was))
	t.Logf("fork of one child: as it was dumped %v, without zeros %v (%.2f), sharing with a base %v (%.2f), compressed %v (%.2f)",
		asDumped, compacted, ratio(compacted, asDumped), sharing, ratio(sharing, asDumped), expanding, ratio(expanding, asDumped))

	// Two children at the same time have the same memory; what was expanded is kept.
	h.allCompressed(t)
	h.o.extra = ""
	h.restart()
	r := ok(h.forkAs(shares.Id, types.Fork{Count: ptr(2), Processes: ptr(types.Include)}))(t)
	for _, c := range r.Items {
		if c.Error != nil {
			t.Fatal(c.Error.Detail)
		}
		if got := h.holds(t, c.Sandbox.Id, p.Id, "?"); got != state {
			t.Errorf("forked: %s, expected %s", got, state)
		}
	}
	eventually(t, "one checkpoint is expanded, the other is not", func() bool { return h.compressed(t) == 1 && len(h.images(t)) == 2 })
	ok(h.verify(shares.Id))(t)
	next := ok(h.dump(r.Items[0].Sandbox.Id))(t)
	ok(h.verify(next.Id))(t)
	for _, id := range []string{shares.Id, base.Id, next.Id} {
		fork(id)()
	}
}

// TestCompressedDamage damages compressed memory.
func TestCompressedDamage(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{extra: shortly})
	sb := ok(h.create(types.CreateSandbox{}))(t)
	h.play(t, sb.Id, "idle", "/tmp/idle")
	cp := ok(h.dump(sb.Id))(t)
	ok(h.verify(cp.Id))(t)
	done(t, h.remove(sb.Id))
	h.allCompressed(t)
	var largest string
	var size int64
	done(t, filepath.WalkDir(filepath.Join(h.poolDir(), "l"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".zst" {
			return err
		}
		st, err := e.Info()
		if err == nil && st.Size() > size {
			largest, size = path, st.Size()
		}
		return err
	}))
	flip(t, largest)
	if _, err := h.forkDump(cp.Id); client.CodeOf(err) != types.CheckpointCorrupt {
		t.Errorf("fork: %v", err)
	}
	if _, err := h.verify(cp.Id); client.CodeOf(err) != types.CheckpointCorrupt {
		t.Errorf("verify: %v", err)
	}
	flip(t, largest)
	ok(h.verify(cp.Id))(t)
	done(t, h.remove(ok(h.forkDump(cp.Id))(t).Id))
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }
