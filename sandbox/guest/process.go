package guest

import (
	"errors"
	"os"
	"time"

	"cairn/sandbox/stem/wire"

	"golang.org/x/sys/unix"
)

const (
	// inputWait is how long a chunk of input may wait for room in the pipe before what fitted
	// is reported. It bounds how long a connection stays open.
	inputWait = 200 * time.Millisecond
	// clearWait bounds kill_all: a process in uninterruptible sleep does not go.
	clearWait = 10 * time.Second
	clearTick = time.Millisecond
)

func (s *stem) start(m *wire.Start) (wire.Started, error) {
	p, err := newPlan(m)
	if err != nil {
		return wire.Started{}, err
	}
	std, err := p.openStreams(s.records, m.ID)
	if err != nil {
		return wire.Started{}, err
	}
	defer std.close()

	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mayStart(m.ID); err != nil {
		std.abandon()
		return wire.Started{}, err
	}
	started := time.Now().UnixMicro()
	pid, err := p.spawn(std)
	if err != nil {
		std.abandon()
		return wire.Started{}, err
	}
	proc := &process{id: m.ID, pid: pid, startedUS: started, input: std.input, terminal: std.terminal}
	s.procs[m.ID], s.byPID[pid] = proc, proc
	notice(s.began)
	setOOMAdj(pid, s.oomAdj)
	if proc.terminal != nil {
		go proc.terminal.copyOutput()
	}
	// Not reaped as long as the lock is held, so there is a stat file to read.
	st, err := readStat(pid)
	if err == nil {
		proc.ticks = st.startTicks
		err = s.records.writePID(m.ID, wire.PIDRecord{PID: pid, StartTicks: st.startTicks, StartedUS: started})
	}
	if err != nil {
		// It would be lost to the host when the stem dies: better not to have it.
		_ = unix.Kill(-pid, unix.SIGKILL)
		return wire.Started{}, err
	}
	return wire.Started{PID: pid, StartedUS: started}, nil
}

func (s *stem) mayStart(id string) error {
	if s.clearing {
		return failure{wire.CodeBusy, "all processes are being ended"}
	}
	if s.procs[id] != nil {
		return failure{wire.CodeExists, id + " is running"}
	}
	return nil
}

// notice leaves one in a channel that has room for one.
func notice(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// keepReaping reaps what was started as soon as it ends: it wakes sooner than SIGCHLD, which
// comes to one thread that has to wake another. It takes part when there is a child; what is
// left to SIGCHLD is what came otherwise, by a restore.
func (s *stem) keepReaping() {
	for {
		if awaitEnd() {
			s.reap()
			continue
		}
		<-s.began
	}
}

// reap records and reaps every child that has ended, started here or inherited. Each is
// recorded, forgotten and reaped under one hold of the lock: whoever has seen the record
// finds the process ended.
func (s *stem) reap() {
	for s.reapOne() {
	}
}

func (s *stem) reapOne() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := peek()
	if !ok {
		return false
	}
	if p := s.byPID[e.pid]; p != nil {
		if p.terminal != nil {
			p.terminal.drain() // whoever sees the record has seen all output
		}
		if err := s.records.writeStatus(p.id, e.status(p.startedUS)); err != nil {
			logf("status of ", p.id, ": ", err.Error())
		}
		delete(s.byPID, p.pid)
		delete(s.procs, p.id)
		p.hangUp()
		notice(s.idle)
	}
	e.reap()
	return true
}

// lookup returns a running process. The caller holds the lock.
func (s *stem) lookup(id string) (*process, error) {
	p := s.procs[id]
	if p != nil && p.adopted && !sameProcess(p.pid, p.ticks) {
		delete(s.procs, id)
		p = nil
	}
	if p != nil {
		return p, nil
	}
	var st unix.Stat_t
	if unix.Lstat(s.records.dir+"/"+id, &st) != nil {
		return nil, failure{wire.CodeNotFound, "no process " + id}
	}
	return nil, failure{wire.CodeNotRunning, id + " is not running"}
}

func (s *stem) signal(m wire.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.lookup(m.ID)
	if err != nil {
		return err
	}
	target := p.pid
	if m.Group {
		target = -p.pid
		// A shell's present job is a group of its own.
		if job := p.job(); job != 0 {
			_ = unix.Kill(-job, unix.Signal(m.Signal))
		}
	}
	err = unix.Kill(target, unix.Signal(m.Signal))
	if errors.Is(err, unix.ESRCH) {
		return failure{wire.CodeNotRunning, m.ID + " is not running"}
	}
	return err
}

func (s *stem) writeInput(m wire.Input) (int, error) {
	s.mu.Lock()
	p, err := s.lookup(m.ID)
	s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if p.input == nil {
		return 0, failure{wire.CodeBadRequest, m.ID + " has no input pipe"}
	}
	n := 0
	if len(m.Data) > 0 {
		if err := p.input.SetWriteDeadline(time.Now().Add(inputWait)); err != nil {
			return 0, inputFailure(m.ID, err)
		}
		n, err = p.input.Write(m.Data)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, inputFailure(m.ID, err)
		}
	}
	if m.Close && n == len(m.Data) && p.terminal != nil {
		if _, err := p.input.Write(p.terminal.endOfFile()); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, inputFailure(m.ID, err)
		}
		return n, nil
	}
	if m.Close && n == len(m.Data) {
		if err := p.input.Close(); err != nil {
			return 0, inputFailure(m.ID, err)
		}
	}
	return n, nil
}

func inputFailure(id string, err error) error {
	if errors.Is(err, os.ErrClosed) || errors.Is(err, unix.EPIPE) {
		return failure{wire.CodeNotRunning, "the input of " + id + " is closed"}
	}
	return err
}

func (s *stem) list() []wire.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]wire.Process, 0, len(s.procs))
	for id := range s.procs {
		p, err := s.lookup(id)
		if err != nil {
			continue
		}
		list = append(list, wire.Process{ID: id, PID: p.pid, StartedUS: p.startedUS, Adopted: p.adopted})
	}
	return list
}

// forget removes the directory of a process that has ended.
func (s *stem) forget(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.lookup(id); err == nil {
		return failure{wire.CodeBusy, id + " is running"}
	}
	return os.RemoveAll(s.records.dir + "/" + id)
}

// killAll kills every process but PID 1 and the stem and returns when all are gone, with
// the number of those that the stem had started. Nothing is started meanwhile.
func (s *stem) killAll() (int, error) {
	s.mu.Lock()
	if s.clearing {
		s.mu.Unlock()
		return 0, failure{wire.CodeBusy, "all processes are being ended"}
	}
	s.clearing = true
	n := len(s.procs)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.clearing = false
		s.mu.Unlock()
	}()

	deadline := time.Now().Add(clearWait)
	tick := time.NewTicker(clearTick)
	defer tick.Stop()
	for {
		// kill(-1) leaves out PID 1 and the caller, and counts zombies: ESRCH means that all
		// have been reaped, by PID 1 too.
		err := unix.Kill(-1, unix.SIGKILL)
		s.reap()
		if err == unix.ESRCH {
			s.mu.Lock()
			clear(s.procs)
			s.mu.Unlock()
			return n, nil
		}
		if err != nil {
			return 0, err
		}
		if time.Now().After(deadline) {
			return 0, failure{wire.CodeLimit, "some processes can't be ended"}
		}
		<-tick.C
	}
}
