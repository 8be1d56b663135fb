package helper

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"

	"cairn/criu/internal/frame"

	"github.com/checkpoint-restore/go-criu/v7"
	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

var errAborted = errors.New("aborted")

// logLimit bounds what is kept of CRIU's log, in bytes: the beginning and the end.
const logLimit = 64 << 10

// worker is a CRIU that runs inside and waits for its one request.
type worker struct {
	*criu.Criu
	log   tail
	gate  *os.File // what is written here lets it enter; nil where nothing is waited for
	read  sync.WaitGroup
	files *resolver // answers what a dumping CRIU asks; nil in a restore
}

// startWorker starts CRIU inside. For a restore, taken are the pids that it needs; for a
// dump, mapped says that it has to be given files that are mapped.
func startWorker(s frame.Setup, taken map[int]bool, mapped bool) (*worker, error) {
	w := &worker{Criu: criu.MakeCriu()}
	// A socket, not a pipe: in a dump it carries a descriptor too.
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	r := os.NewFile(uintptr(pair[0]), "log")
	// It must go through two programs: the descriptor is not closed on exec.
	logFD, err := unix.FcntlInt(uintptr(pair[1]), unix.F_DUPFD, frame.FDCgroup+s.Cgroups)
	unix.Close(pair[1])
	if err != nil {
		r.Close()
		return nil, err
	}
	e := entry{Op: s.Op, Bundle: s.Bundle, Cgroups: s.Cgroups, LogFD: logFD, Mapped: mapped, PIDs: candidates(taken)}
	if s.Op == frame.OpRestore {
		e.LastPID = gap(taken)
		if e.GateFD, err = w.makeGate(s); err != nil {
			r.Close()
			unix.Close(logFD)
			return nil, err
		}
		defer unix.Close(e.GateFD)
	}
	text, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	if err := os.Setenv(enterVar, string(text)); err != nil {
		return nil, err
	}
	w.SetCriuPath("/proc/self/exe")
	err = w.Prepare()
	unix.Close(logFD)
	if err != nil {
		r.Close()
		w.closeGate()
		return nil, fmt.Errorf("start CRIU: %w", err)
	}
	var listener *os.File
	if s.Op == frame.OpDump {
		if w.files, err = newResolver(s.PID); err != nil {
			r.Close()
			_ = w.Cleanup()
			return nil, err
		}
		listener = receiveListener(r)
	}
	w.read.Go(func() {
		defer r.Close()
		_, _ = io.Copy(&w.log, r)
	})
	if listener != nil {
		w.read.Go(func() {
			defer listener.Close()
			answer(listener, w.files)
		})
	}
	return w, nil
}

// makeGate gives the descriptor that the process is to wait at before it enters.
func (w *worker) makeGate(s frame.Setup) (fd int, err error) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return 0, err
	}
	w.gate = os.NewFile(uintptr(pipe[1]), "gate")
	// Like that of the log.
	fd, err = unix.FcntlInt(uintptr(pipe[0]), unix.F_DUPFD, frame.FDCgroup+s.Cgroups)
	unix.Close(pipe[0])
	return fd, err
}

// enter lets the process go in.
func (w *worker) enter() error {
	_, err := w.gate.Write([]byte{0})
	return err
}

func (w *worker) closeGate() {
	if w.gate != nil {
		w.gate.Close()
	}
}

// end waits for CRIU to end. The error says how it ended, if not well.
func (w *worker) end() error {
	w.closeGate()
	err := w.Cleanup()
	w.read.Wait()
	if w.files != nil {
		w.files.Close()
	}
	return err
}

// cpuCapabilities has CRIU note, in a dump, what the CPU can do, and compare in a restore:
// the state of its units that is saved (1), and its instructions (4). It may be able to do
// more than the former one.
const (
	cpuCapabilities = 1 | 4
	cpuFile         = "cpuinfo.img"
)

// options are those that dump and restore have in common.
func options(q frame.Request) *rpc.CriuOpts {
	ignore := rpc.CriuCgMode_IGNORE
	skip := rpc.CriuNetworkLockMethod_SKIP
	return &rpc.CriuOpts{
		ImagesDirFd:       proto.Int32(-1),
		ImagesDir:         proto.String("/proc/self/fd/" + strconv.Itoa(frame.FDImages)),
		LogLevel:          proto.Int32(int32(q.LogLevel)),
		LogToStderr:       proto.Bool(true),
		Unprivileged:      proto.Bool(true),
		NetworkLock:       &skip,
		FileLocks:         proto.Bool(true),
		TcpClose:          proto.Bool(true),
		TcpSkipInFlight:   proto.Bool(true),
		EvasiveDevices:    proto.Bool(true),
		GhostLimit:        proto.Uint32(q.GhostLimit),
		ManageCgroupsMode: &ignore,
	}
}

// tail keeps the beginning and the end of what is written to it.
type tail struct {
	mu    sync.Mutex
	head  bytes.Buffer
	rest  []byte
	total int
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(b)
	t.total += n
	if room := logLimit - t.head.Len(); room > 0 {
		k := min(room, len(b))
		t.head.Write(b[:k])
		b = b[k:]
	}
	t.rest = append(t.rest, b...)
	if len(t.rest) > 2*logLimit {
		t.rest = append(t.rest[:0], t.rest[len(t.rest)-logLimit:]...)
	}
	return n, nil
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.head.String() + string(t.rest)
}
