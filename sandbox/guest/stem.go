package guest

import (
	"os"
	"sync"
	"time"

	"cairn/sandbox/stem/wire"

	"golang.org/x/sys/unix"
)

const (
	stemRole = "stem"
	// maxConns bounds the connections served at a time; others wait in the backlog.
	maxConns = 64
	backlog  = 4096
	// idle is how long a connection may take to send a request or to take an answer.
	idle = 2 * time.Second
)

// stem is the server.
type stem struct {
	dir     string
	records records
	oomAdj  string        // of its children
	idle    chan struct{} // has a notice after a process has ended
	began   chan struct{} // has a notice after a process has been started

	mu       sync.Mutex // guards what follows, and forking against reaping
	procs    map[string]*process
	byPID    map[int]*process
	clearing bool // kill_all is under way
}

// process is one that was started and has not been reaped.
type process struct {
	id        string
	pid       int
	ticks     int64
	startedUS int64
	adopted   bool      // a child of PID 1, started by an earlier stem
	input     *os.File  // nil: it has none, or not any more
	terminal  *terminal // nil: it has none; input is its master
}

func runStem(dir string) int {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		logf("subreaper: ", err.Error())
		return 1
	}
	unix.Umask(0o022)
	sig := catchSignals()
	s := &stem{
		dir:     dir,
		records: newRecords(dir),
		oomAdj:  childOOMAdj(),
		idle:    make(chan struct{}, 1),
		began:   make(chan struct{}, 1),
		procs:   map[string]*process{},
		byPID:   map[int]*process{},
	}
	s.adopt()
	listener, err := listen(dir + "/" + wire.FileSocket)
	if err != nil {
		logf("listen: ", err.Error())
		return 1
	}
	go s.accept(listener)
	go s.keepSpare()
	go s.keepReaping()
	for {
		select {
		case <-sig.child:
			s.reap()
		case <-sig.wake:
			s.refresh()
		case <-sig.term:
			return 0
		}
	}
}

// adopt takes over the processes of an earlier stem. PID 1 is their parent now and records
// their ends; what ended with nobody to see it is recorded as lost.
func (s *stem) adopt() {
	for id, rec := range s.records.unfinished() {
		if sameProcess(rec.PID, rec.StartTicks) {
			s.procs[id] = &process{id: id, pid: rec.PID, ticks: rec.StartTicks, startedUS: rec.StartedUS, adopted: true}
			continue
		}
		if s.records.hasStatus(id) {
			continue
		}
		lost := wire.Status{How: wire.Lost, StartedUS: rec.StartedUS, FinishedUS: time.Now().UnixMicro()}
		if err := s.records.writeStatus(id, lost); err != nil {
			logf("status of ", id, ": ", err.Error())
		}
	}
}

// listen binds the socket under its final name: a restored process finds its socket by the
// name it was bound to.
func listen(path string) (*os.File, error) {
	if err := unix.Unlink(path); err != nil && err != unix.ENOENT {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	mask := unix.Umask(0o177)
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	unix.Umask(mask)
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func (s *stem) accept(listener *os.File) {
	raw, err := listener.SyscallConn()
	if err != nil {
		logf("accept: ", err.Error())
		os.Exit(1)
	}
	slots := make(chan struct{}, maxConns)
	for {
		slots <- struct{}{}
		fd := -1
		var aerr error
		err := raw.Read(func(l uintptr) bool {
			fd, _, aerr = unix.Accept4(int(l), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
			return aerr != unix.EAGAIN
		})
		if err == nil {
			err = aerr
		}
		if err != nil {
			<-slots
			// Most likely out of descriptors or memory, which ends when others let go.
			logf("accept: ", err.Error())
			time.Sleep(minPause) //nolint:forbidigo // nothing tells when
			continue
		}
		go func() {
			defer func() { <-slots }()
			conn := os.NewFile(uintptr(fd), "conn")
			defer conn.Close()
			s.serve(conn)
		}()
	}
}

// serve answers requests until the peer closes or errs.
func (s *stem) serve(conn *os.File) {
	for {
		if conn.SetDeadline(time.Now().Add(idle)) != nil {
			return
		}
		kind, payload, err := wire.ReadFrame(conn, wire.MaxFrame)
		bad := err != nil
		var answer []byte
		if !bad {
			answer, err = s.handle(kind, payload)
		} else if asFailure(err).code != wire.CodeBadRequest {
			return // the connection's end, or its failure
		}
		reply := wire.KindOK
		if err != nil {
			f := asFailure(err)
			reply, answer = wire.KindError, wire.Failure{Code: f.code, Message: f.message}.Append(nil)
		}
		frame, err := wire.AppendFrame(nil, reply, answer)
		if err != nil || conn.SetDeadline(time.Now().Add(idle)) != nil {
			return
		}
		if _, err := conn.Write(frame); err != nil || bad {
			return
		}
	}
}

func (s *stem) handle(kind wire.Kind, payload []byte) ([]byte, error) {
	switch kind {
	case wire.KindPing:
		return wire.AppendCount(nil, os.Getpid()), nil
	case wire.KindStart:
		m, err := wire.ParseStart(payload)
		if err != nil {
			return nil, err
		}
		started, err := s.start(m)
		if err != nil {
			return nil, err
		}
		return started.Append(nil), nil
	case wire.KindSignal:
		m, err := wire.ParseSignal(payload)
		if err != nil {
			return nil, err
		}
		return nil, s.signal(m)
	case wire.KindStdin:
		m, err := wire.ParseInput(payload)
		if err != nil {
			return nil, err
		}
		n, err := s.writeInput(m)
		if err != nil {
			return nil, err
		}
		return wire.AppendCount(nil, n), nil
	case wire.KindList:
		return wire.AppendProcesses(nil, s.list()), nil
	case wire.KindForget:
		id, err := wire.ParseID(payload)
		if err != nil {
			return nil, err
		}
		return nil, s.forget(id)
	case wire.KindKillAll:
		n, err := s.killAll()
		if err != nil {
			return nil, err
		}
		return wire.AppendCount(nil, n), nil
	case wire.KindResize:
		m, err := wire.ParseResize(payload)
		if err != nil {
			return nil, err
		}
		return nil, s.resize(m)
	default:
		return nil, failure{wire.CodeBadRequest, "unknown request"}
	}
}
