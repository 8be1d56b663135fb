package wire

import "strconv"

const (
	// MaxPID is the kernel's own limit.
	MaxPID = 1 << 22
	// MaxSignal is the highest real-time signal.
	MaxSignal = 64
	// MaxRecord bounds a record's size in bytes.
	MaxRecord = 512

	maxNumber = 1<<62 - 1
	maxExit   = 255
)

// Names of the files in /run/cairn/p/<id>/.
const (
	FileStdin  = "stdin"
	FileStdout = "stdout"
	FileStderr = "stderr"
	FilePID    = "pid"
	FilePIDNew = "pid.new"
	FileStatus = "status"
	// FileStatusNew has a status record's room taken when the process starts, so that a
	// full disk can't swallow the status; it becomes FileStatus by rename.
	FileStatusNew = "status.new"
)

// Names of the files in /run/cairn/.
const (
	FileSocket  = "stem.sock"
	FileLog     = "stem.log"
	FileNoStem  = "no-stem"
	DirProcess  = "p"
	DirSpare    = "spare" // becomes the directory of the next process
	statusTitle = "cairn-status"
	pidTitle    = "cairn-pid"
)

// How says how a process ended; the word is the key of the status record's second line.
type How string

// The three ways to end.
const (
	Exited   How = "exit_code" // value: 0..255
	Signaled How = "signal"    // value: 1..64
	Lost     How = "lost"      // value: 0; it ended while nobody was there to see how
)

// Status is the record of a process that has ended.
type Status struct {
	How         How
	Value       int
	StartedUS   int64 // Unix time in microseconds
	FinishedUS  int64
	MaxRSSBytes int64
	UserUS      int64 // processor time in microseconds
	SystemUS    int64
}

// Append adds the record's text to buf.
func (s Status) Append(buf []byte) []byte {
	buf = appendLine(buf, statusTitle, Version)
	buf = appendLine(buf, string(s.How), int64(s.Value))
	buf = appendLine(buf, "started_us", s.StartedUS)
	buf = appendLine(buf, "finished_us", s.FinishedUS)
	buf = appendLine(buf, "maxrss_bytes", s.MaxRSSBytes)
	buf = appendLine(buf, "utime_us", s.UserUS)
	return appendLine(buf, "stime_us", s.SystemUS)
}

// ParseStatus accepts exactly what Append writes.
func ParseStatus(b []byte) (Status, error) {
	l := lines{rest: b}
	l.version(statusTitle)
	var s Status
	key, value := l.next()
	s.How, s.Value = How(key), int(min(value, maxNumber))
	ok := s.How == Exited && value <= maxExit ||
		s.How == Signaled && value >= 1 && value <= MaxSignal ||
		s.How == Lost && value == 0
	s.StartedUS = l.field("started_us")
	s.FinishedUS = l.field("finished_us")
	s.MaxRSSBytes = l.field("maxrss_bytes")
	s.UserUS = l.field("utime_us")
	s.SystemUS = l.field("stime_us")
	if err := l.done(); err != nil || !ok {
		return Status{}, ErrMalformed
	}
	return s, nil
}

// PIDRecord names the process that a directory belongs to, across deaths of the stem.
type PIDRecord struct {
	PID int
	// StartTicks is field 22 of /proc/PID/stat: with it a pid means one process only.
	StartTicks int64
	StartedUS  int64
}

// Append adds the record's text to buf.
func (p PIDRecord) Append(buf []byte) []byte {
	buf = appendLine(buf, pidTitle, Version)
	buf = appendLine(buf, "pid", int64(p.PID))
	buf = appendLine(buf, "start_ticks", p.StartTicks)
	return appendLine(buf, "started_us", p.StartedUS)
}

// ParsePID accepts exactly what Append writes.
func ParsePID(b []byte) (PIDRecord, error) {
	l := lines{rest: b}
	l.version(pidTitle)
	p := PIDRecord{PID: int(l.field("pid")), StartTicks: l.field("start_ticks"), StartedUS: l.field("started_us")}
	if err := l.done(); err != nil || p.PID < 1 || p.PID > MaxPID {
		return PIDRecord{}, ErrMalformed
	}
	return p, nil
}

func appendLine(buf []byte, key string, value int64) []byte {
	buf = append(append(buf, key...), ' ')
	return append(strconv.AppendInt(buf, max(value, 0), 10), '\n')
}

// lines reads "key value" lines; the first mistake sticks.
type lines struct {
	rest []byte
	bad  bool
}

func (l *lines) next() (string, int64) {
	for i, c := range l.rest {
		if i > MaxRecord {
			break
		}
		if c != '\n' {
			continue
		}
		line := l.rest[:i]
		l.rest = l.rest[i+1:]
		for j, c := range line {
			if c == ' ' {
				value, ok := number(line[j+1:])
				l.bad = l.bad || !ok
				return string(line[:j]), value
			}
		}
		break
	}
	l.bad, l.rest = true, nil
	return "", 0
}

func number(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 19 || b[0] == '0' && len(b) > 1 {
		return 0, false
	}
	var v uint64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		v = v*10 + uint64(c-'0')
	}
	return int64(v & (1<<63 - 1)), v <= maxNumber
}

func (l *lines) field(key string) int64 {
	k, v := l.next()
	if k != key {
		l.bad = true
	}
	return v
}

func (l *lines) version(title string) {
	if l.field(title) != Version {
		l.bad = true
	}
}

func (l *lines) done() error {
	if l.bad || len(l.rest) != 0 {
		return ErrMalformed
	}
	return nil
}
