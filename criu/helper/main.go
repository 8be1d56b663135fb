package helper

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"cairn/criu/internal/frame"

	"golang.org/x/sys/unix"
)

// Main runs the program with the command line args and returns its exit code.
func Main(args []string) int {
	switch {
	case len(args) == 3 && args[1] == "swrk":
		return swrk(args[2])
	case len(args) == 2 && args[1] == probeRole:
		return probeInside()
	case len(args) == 1:
		if err := serve(); err != nil {
			fmt.Fprintln(os.Stderr, "cairn-criu:", err)
			return 1
		}
		return 0
	}
	fmt.Fprintln(os.Stderr, "cairn-criu is started by the daemon")
	return 2
}

// conn is the daemon's end of the line.
type conn struct {
	enc *json.Encoder
	dec *json.Decoder
}

func (c *conn) tell(e frame.Event) error { return c.enc.Encode(e) }

// ask tells something and waits to be told to go on.
func (c *conn) ask(e frame.Event) error {
	if err := c.tell(e); err != nil {
		return err
	}
	var r frame.Reply
	if err := c.dec.Decode(&r); err != nil {
		return fmt.Errorf("the daemon is gone: %w", err)
	}
	if !r.Go {
		return errAborted
	}
	return nil
}

func serve() error {
	unix.CloseOnExec(frame.FDControl)
	control := os.NewFile(frame.FDControl, "control")
	c := &conn{enc: json.NewEncoder(control), dec: json.NewDecoder(control)}
	var s frame.Setup
	if err := c.dec.Decode(&s); err != nil {
		return fmt.Errorf("read the set-up: %w", err)
	}
	var done frame.Event
	switch s.Op {
	case frame.OpDump:
		done = dump(c, s)
	case frame.OpRestore:
		done = restore(c, s)
	case frame.OpClear:
		done = clearAll()
	case frame.OpProbe:
		done = probe(s)
	default:
		return fmt.Errorf("unknown operation %q", s.Op)
	}
	done.Kind = frame.Done
	return c.tell(done)
}

// clearAll ends every process of the container but PID 1.
func clearAll() frame.Event {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	e := entry{Op: frame.OpClear, PIDs: candidates(nil)}
	p, err := e.plan("")
	if err != nil {
		return failed(err)
	}
	const tries, killed = 10, 128 + int(unix.SIGKILL)
	code := killed
	// Another one that clears the same container ends this one's process too.
	for i := 0; i < tries && code == killed; i++ {
		child, errno := p.fork()
		if errno != 0 {
			return failed(fmt.Errorf("fork: %w", errno))
		}
		code = wait(child)
	}
	switch code {
	case 0:
		return frame.Event{}
	case 1:
		return frame.Event{Failure: &frame.Failure{Code: "stuck", Message: "some processes of the sandbox can't be ended"}}
	default:
		return failed(errors.New(entered(code)))
	}
}

func failed(err error) frame.Event {
	return frame.Event{Failure: &frame.Failure{Code: "internal", Message: err.Error()}}
}

// candidates are pids that CRIU may have inside: low ones, which the kernel gives to
// nobody any more once it has counted past them, without those that a restore needs.
func candidates(taken map[int]bool) []int {
	var pids []int
	for pid := 299; pid > 100 && len(pids) < 32; pid-- {
		if !taken[pid] {
			pids = append(pids, pid)
		}
	}
	return pids
}

// gap returns a pid after which some hundred are free of those taken, for the processes
// that CRIU makes on the way.
func gap(taken map[int]bool) string {
	const room, first = 300, 1000
	limit := 32768
	if b, err := os.ReadFile("/proc/sys/kernel/pid_max"); err == nil {
		if n, err := strconv.Atoi(string(b[:len(b)-1])); err == nil {
			limit = min(limit, n)
		}
	}
	free := 0
	for pid := first; pid < limit; pid++ {
		if free++; taken[pid] {
			free = 0
		}
		if free == room {
			return strconv.Itoa(pid - room)
		}
	}
	return ""
}
