package failpoint

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

func TestParse(t *testing.T) {
	known := []string{"a.b", "c"}
	for _, bad := range []string{"x=kill", "a.b", "a.b=", "a.b=boom", "a.b=kill,", ","} {
		if _, err := Parse(bad, known); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	p, err := Parse("a.b=error,c=kill", known)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Reach("a.b"); !errors.Is(err, ErrInjected) {
		t.Errorf("got %v", err)
	}
	if err := p.Reach("other"); err != nil {
		t.Errorf("got %v", err)
	}
	var none *Points
	if err := none.Reach("a.b"); err != nil {
		t.Errorf("got %v", err)
	}
}

func TestKill(t *testing.T) {
	if os.Getenv("FAILPOINT_CHILD") != "" {
		p, err := Parse("a=kill", []string{"a"})
		if err == nil {
			err = p.Reach("a")
		}
		t.Fatal("still alive", err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKill$")
	cmd.Env = append(os.Environ(), "FAILPOINT_CHILD=1")
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("got %v, want death by SIGKILL", err)
	}
}
