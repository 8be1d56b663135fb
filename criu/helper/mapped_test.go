package helper

import "testing"

func TestHasDeleted(t *testing.T) {
	const at = "7f0000000000-7f0000002000 rw-s 00000000 00:01 1234                       "
	for line, want := range map[string]bool{
		at + "/tmp/x (deleted)\n":               true,
		at + "/memfd:name (deleted)\n":          true,
		at + "/tmp/with space (deleted)\n":      true,
		at + "/dev/shm/x (deleted)\n":           true,
		at + "/dev/zero (deleted)\n":            false,
		at + "/SYSV00000000 (deleted)\n":        false,
		at + "/tmp/x\n":                         false,
		at + "/tmp/a (deleted) b\n":             false,
		at + "\n":                               false,
		"7f0-7f1 rw-p 00000000 00:00 0\n":       false,
		at + "/tmp/x\n" + at + "/y (deleted)\n": true,
	} {
		if got := hasDeleted([]byte(line)); got != want {
			t.Errorf("%q: %v", line, got)
		}
	}
}
