package helper

import "testing"

func TestLockedAndMapped(t *testing.T) {
	const table = "1: POSIX  ADVISORY  READ  77 00:2e:9001 128 128\n" +
		"1: -> POSIX  ADVISORY  WRITE 78 00:2e:9001 128 128\n" +
		"2: FLOCK  ADVISORY  WRITE 79 00:2e:9002 0 EOF\n" +
		"3: OFDLCK ADVISORY  WRITE -1 00:2e:9003 0 EOF\n" +
		"4: POSIX  ADVISORY  WRITE 77 00:2e:9004 0 EOF\n" +
		"5: POSIX  ADVISORY  WRITE 0 00:2e:9005 0 EOF\n"
	locks := recordLocks(table)
	if len(locks) != 1 || len(locks[77]) != 2 || !locks[77]["00:2e:9001"] || !locks[77]["00:2e:9004"] {
		t.Fatalf("locks: %v", locks)
	}
	const line = "7f0000000000-7f0000001000 rw-s 00000000 00:2e "
	for _, c := range []struct{ maps, path string }{
		{line + "9001                       /w/a b-shm\n", "/w/a b-shm"},
		{line + "9004 /w/x (deleted)\n", "/w/x (deleted)"},
		{line + "900 /w/x\n", ""},
		{"7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n", ""},
		{"", ""},
	} {
		if path, ok := mapped(c.maps, locks[77]); path != c.path || ok != (c.path != "") {
			t.Errorf("%q: %q %v", c.maps, path, ok)
		}
	}
}
