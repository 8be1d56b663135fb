package pages_test

import (
	"bufio"
	"fmt"
	"hash/maphash"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const page = 4096

// mapping is what one mapping of a process holds.
type mapping struct {
	start, end uint64
	what       string   // permissions and name
	pages      []uint64 // a hash of each; 0 where the kernel gives none
}

// memory is what the processes of a sandbox hold, by pid inside.
type memory map[int][]mapping

// readMemory reads everything, from outside.
func (b *box) readMemory(t testing.TB, seed maphash.Seed) memory {
	t.Helper()
	want, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", b.pid))
	check(t, err)
	all := memory{}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	check(t, err)
	for _, d := range dirs {
		ns, err := os.Readlink(d + "/ns/pid")
		if err != nil || ns != want || filepath.Base(d) == strconv.Itoa(b.pid) {
			continue
		}
		if exe, err := os.Readlink(d + "/exe"); err != nil || !strings.Contains(exe, "python") && !strings.Contains(exe, "cairn-init") {
			continue // CRIU itself
		}
		all[pidInside(t, d)] = readProcess(t, d, seed)
	}
	return all
}

func pidInside(t testing.TB, dir string) int {
	t.Helper()
	text, err := os.ReadFile(dir + "/status")
	check(t, err)
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "NSpid:"); ok {
			f := strings.Fields(v)
			pid, err := strconv.Atoi(f[len(f)-1])
			check(t, err)
			return pid
		}
	}
	t.Fatalf("%s has no pid", dir)
	return 0
}

func readProcess(t testing.TB, dir string, seed maphash.Seed) []mapping {
	t.Helper()
	maps, err := os.Open(dir + "/maps")
	check(t, err)
	defer maps.Close()
	mem, err := os.Open(dir + "/mem")
	check(t, err)
	defer mem.Close()
	var all []mapping
	buf := make([]byte, 1<<20)
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		f := strings.Fields(lines.Text())
		m := mapping{what: f[1] + " " + strings.Join(f[5:], " ")}
		_, err := fmt.Sscanf(f[0], "%x-%x", &m.start, &m.end)
		check(t, err)
		if strings.Contains(m.what, "[v") { // of the kernel's
			continue
		}
		if f[1] == "---p" && len(f) < 6 && m.end-m.start > 1<<28 {
			continue // address space that a program has reserved
		}
		for at := m.start; at < m.end; at += uint64(len(buf)) {
			b := buf[:min(uint64(len(buf)), m.end-at)]
			n, err := mem.ReadAt(b, int64(at))
			for i := 0; i < len(b); i += page {
				switch {
				case err == nil || i+page <= n:
					m.pages = append(m.pages, maphash.Bytes(seed, b[i:i+page]))
				default: // something in this part can't be read: page by page
					one := b[i : i+page]
					if _, err := mem.ReadAt(one, int64(at)+int64(i)); err != nil {
						m.pages = append(m.pages, 0)
					} else {
						m.pages = append(m.pages, maphash.Bytes(seed, one))
					}
				}
			}
		}
		all = append(all, m)
	}
	return all
}

// same checks that is has everything that was there, and returns the number of pages.
func same(t testing.TB, what string, was, is memory) int {
	t.Helper()
	if len(was) != len(is) {
		t.Errorf("%s: %d processes, there were %d", what, len(is), len(was))
	}
	total, wrong := 0, 0
	for pid, mappings := range was {
		// Mappings may be divided in other ways: pages are looked up one by one.
		found := map[uint64]uint64{}
		for _, m := range is[pid] {
			for i, h := range m.pages {
				found[m.start+uint64(i)*page] = h
			}
		}
		for _, m := range mappings {
			for i, h := range m.pages {
				total++
				addr := m.start + uint64(i)*page
				got, ok := found[addr]
				if ok && got == h {
					continue
				}
				if wrong++; wrong <= 10 {
					t.Errorf("%s: process %d: %#x (%s, page %d) is another one (there: %v)", what, pid, addr, m.what, i, ok)
				}
			}
		}
	}
	if wrong > 10 {
		t.Errorf("%s: %d pages of %d are wrong", what, wrong, total)
	}
	return total
}
