package criu_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"cairn/criu"
)

// process is what the kernel says of one, with pids inside.
type process struct {
	parent, group, session int
	state                  string
}

// family gives the processes of a command line, by what it has as its last word.
func (b *box) family(t testing.TB) map[string]process {
	t.Helper()
	found := map[string]process{}
	for pid := range b.states(t) {
		proc := fmt.Sprintf("/proc/%d/root/proc/%d/", b.pid, pid)
		line, err1 := os.ReadFile(proc + "cmdline")
		stat, err2 := os.ReadFile(proc + "stat")
		if err1 != nil || err2 != nil {
			continue
		}
		words := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
		var p process
		_, err := fmt.Sscan(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), &p.state, &p.parent, &p.group, &p.session)
		check(t, err)
		if p.state == "R" || p.state == "D" {
			p.state = "S" // it is about to
		}
		found[words[len(words)-1]] = p
	}
	return found
}

// Orphans are the stem's children, in the sessions and the groups that they had, after
// every restore, so that they are in the next dump.
func TestOrphans(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	// Sessions whose leader has ended: the command's own, and one that was made for it.
	b.sh(t, "sleep 1001 & sleep 1002 & (sleep 1003 &)")
	b.sh(t, "setsid sh -c '(sleep 1004 & sleep 1005 &)'; setsid -f sh -c '(sleep 1006 &)'; setsid -f sleep 1007")
	// A session whose leader lives, and one that an orphan made.
	live := b.start(t, "/bin/sh", "-c", "(sleep 1008 &); exec sleep 1009")
	// An orphan with children, of whom one is stopped, and one has ended.
	b.sh(t, `(setsid -f sh -c '(sh -c "sleep 1010 & sleep 1011 & until grep -q sleep /proc/\$!/comm; do :; done; kill -STOP \$!; true & exec sleep 1012" &)')`)
	b.sh(t, "(sh -c 'while ! [ -e /tmp/end ]; do sleep 0.02; done; exit 3' waits &)")
	stem, err := b.Ping(t.Context())
	check(t, err)
	ready := func() error {
		f := b.family(t)
		for n := 1001; n <= 1012; n++ {
			if _, ok := f[fmt.Sprint(n)]; !ok {
				return fmt.Errorf("%d is not there: %v", n, f)
			}
		}
		if f["1011"].state != "T" {
			return errors.New("not stopped")
		}
		// Those between them and the stem may take a moment to end.
		for _, n := range []string{"1001", "1002", "1003", "1004", "1005", "1006", "1007", "1008", "1012", "waits"} {
			if f[n].parent != stem {
				return fmt.Errorf("%s is a child of %d", n, f[n].parent)
			}
		}
		return nil
	}
	until(t, "the processes", ready)
	settled := func(x *box) map[string]process {
		f := x.family(t)
		for word := range f {
			if word == "" || strings.HasPrefix(word, "0.") {
				delete(f, word) // a zombie, and what waits: those are other ones every time
			}
		}
		return f
	}
	was := settled(b)
	same := func(x *box, when string) {
		t.Helper()
		is := settled(x)
		for word, p := range was {
			if is[word] != p {
				t.Errorf("%s: %s was %+v and is %+v", when, word, p, is[word])
			}
		}
		if len(is) != len(was) {
			t.Errorf("%s: there were %v and are %v", when, was, is)
		}
	}
	rights := b.rights(t)
	var d criu.DumpStats
	var images *os.File
	for round := range 2 {
		images = newImages(t)
		d, err = c.Dump(t.Context(), b.target(), images, criu.DumpOptions{})
		check(t, err)
		b.restore(t, c, images)
		same(b, fmt.Sprint("restore ", round))
		b.sameRights(t, rights)
	}
	f := b.fork(t, c, d.Files)
	f.restore(t, c, images)
	same(f, "fork")
	f.seq.Store(b.seq.Load()) // it has the records of the same processes
	for _, x := range []*box{b, f} {
		x.sh(t, "touch /tmp/end; pkill -9 -x sleep")
		until(t, "everybody to end", func() error {
			// All but PID 1 and the stem, zombies included.
			if left := x.states(t); len(left) != 2 {
				return fmt.Errorf("%v are left", left)
			}
			return nil
		})
		if e, err := x.Wait(t.Context(), live); err != nil || e.Signal != 9 || e.Lost {
			t.Errorf("the end of who was started by request: %+v, %v", e, err)
		}
	}
}

// sameRights is the function of that name but for who was there for a moment, and for
// zombies, who have the rights of CRIU, and no use for them.
func (b *box) sameRights(t testing.TB, was map[int]string) {
	t.Helper()
	is, both := b.rights(t), map[int]string{}
	states := b.states(t)
	for pid, r := range was {
		if _, ok := is[pid]; ok && states[pid] != "Z" {
			both[pid] = r
		}
	}
	for pid := range is {
		if states[pid] == "Z" {
			delete(is, pid)
		}
	}
	sameRights(t, both, is)
}

// An orphan that another subreaper than the stem has.
func TestOrphanOfAnother(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	id := b.start(t, "python3", "-c", `
import ctypes, os, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    print('ready', flush=True); os.execvp('sleep', ['sleep', '1000'])
time.sleep(1000)`)
	b.says(t, id, "ready")
	until(t, "the orphan", func() error {
		// Its parent is a zombie, in the place of which it has another.
		if f := b.family(t); f["1000"].parent == f["1000"].group {
			return fmt.Errorf("its parent is there: %v", f)
		}
		return nil
	})
	b.refused(t, c, criu.CodeUnsupported, "sleep", "session")
}
