package guest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cairn/sandbox/stem/wire"

	"golang.org/x/sys/unix"
)

// With no room on the disk a process at a terminal goes on, and its output says later how
// much is missing.
func TestTerminalWithoutRoom(t *testing.T) {
	term, slave, err := openTerminal(wire.Size{Rows: 2, Cols: 3}, identity{})
	if err != nil {
		t.Fatal(err)
	}
	defer term.close()
	defer unix.Close(slave)
	say := func(s string) {
		t.Helper()
		if n, err := unix.Write(slave, []byte(s)); err != nil || n != len(s) {
			t.Fatal(n, err)
		}
		term.drain()
	}
	if term.out, err = unix.Open("/dev/full", unix.O_WRONLY|unix.O_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		say(strings.Repeat("lost", 250)) // more in all than the kernel holds
	}
	unix.Close(term.out)
	path := filepath.Join(t.TempDir(), "stdout")
	if term.out, err = unix.Open(path, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_CLOEXEC, 0o600); err != nil {
		t.Fatal(err)
	}
	say("heard")
	say(" again")
	got, err := os.ReadFile(path)
	if want := "\r\n[100000 bytes of output are missing: there was no room on the disk]\r\nheard again"; err != nil || string(got) != want {
		t.Fatalf("%q, %v", got, err)
	}
}
