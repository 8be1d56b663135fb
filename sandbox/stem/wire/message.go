package wire

// Stdin says what a process reads as its standard input.
type Stdin uint8

const (
	// StdinNone is /dev/null.
	StdinNone Stdin = iota
	// StdinFile is the file "stdin" in the process's directory, written beforehand.
	StdinFile
	// StdinPipe is a pipe that the stem holds, fed by Input messages.
	StdinPipe
)

// Size of a terminal in characters.
type Size struct{ Rows, Cols uint16 }

// Start asks for a process. With StdinFile the directory /run/cairn/p/<ID> exists already.
type Start struct {
	ID    string
	Argv  []string
	Env   []string // "NAME=value"
	Cwd   string   // absolute; "" is "/"
	User  string   // "name|uid[:group|gid]"; "" is root
	Stdin Stdin
	TTY   *Size // nil: no terminal
}

// Append adds the message's payload to buf.
func (m *Start) Append(buf []byte) []byte {
	buf = AppendString(buf, m.ID)
	buf = AppendStrings(buf, m.Argv)
	buf = AppendStrings(buf, m.Env)
	buf = AppendString(buf, m.Cwd)
	buf = AppendString(buf, m.User)
	buf = AppendUint(buf, uint64(m.Stdin))
	buf = AppendBool(buf, m.TTY != nil)
	if m.TTY != nil {
		buf = AppendUint(buf, uint64(m.TTY.Rows))
		buf = AppendUint(buf, uint64(m.TTY.Cols))
	}
	return buf
}

// ParseStart checks lengths, the id and that no string holds a NUL byte; whether the
// command exists is for the caller to find out.
func ParseStart(p []byte) (*Start, error) {
	r := reader{buf: p}
	m := &Start{ID: r.string(), Argv: r.strings(), Env: r.strings(), Cwd: r.string(), User: r.string()}
	m.Stdin = Stdin(r.upTo(uint64(StdinPipe)))
	if r.bool() {
		m.TTY = &Size{Rows: uint16(r.upTo(1<<16 - 1)), Cols: uint16(r.upTo(1<<16 - 1))}
	}
	if err := r.done(); err != nil {
		return nil, err
	}
	if !m.valid() {
		return nil, ErrMalformed
	}
	return m, nil
}

func (m *Start) valid() bool {
	if !ValidID(m.ID) || len(m.Argv) == 0 || m.Argv[0] == "" || hasNUL(m.Cwd) || hasNUL(m.User) {
		return false
	}
	for _, s := range m.Argv {
		if hasNUL(s) {
			return false
		}
	}
	for _, s := range m.Env {
		if hasNUL(s) {
			return false
		}
	}
	return true
}

func hasNUL(s string) bool {
	for i := range len(s) {
		if s[i] == 0 {
			return true
		}
	}
	return false
}

// ValidID accepts 1 to 64 letters, digits, '_' and '-', beginning with a letter or a digit:
// a prefixed ULID, and nothing that is special in a path.
func ValidID(id string) bool {
	if len(id) == 0 || len(id) > 64 {
		return false
	}
	for i := range len(id) {
		c := id[i]
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
		case (c == '_' || c == '-') && i > 0:
		default:
			return false
		}
	}
	return true
}

// Started answers Start.
type Started struct {
	PID       int   // in the sandbox's pid namespace
	StartedUS int64 // Unix time in microseconds
}

// Append adds the message's payload to buf.
func (m Started) Append(buf []byte) []byte {
	return AppendUint(AppendUint(buf, uint64(m.PID)), uint64(m.StartedUS))
}

// ParseStarted reads the answer to Start.
func ParseStarted(p []byte) (Started, error) {
	r := reader{buf: p}
	m := Started{PID: int(r.upTo(MaxPID)), StartedUS: int64(r.upTo(maxNumber))}
	return m, r.done()
}

// Signal sends a signal to a process, or to its process group.
type Signal struct {
	ID     string
	Signal int
	Group  bool
}

// Append adds the message's payload to buf.
func (m Signal) Append(buf []byte) []byte {
	return AppendBool(AppendUint(AppendString(buf, m.ID), uint64(m.Signal)), m.Group)
}

// ParseSignal accepts signals 0 (does it exist?) to 64.
func ParseSignal(p []byte) (Signal, error) {
	r := reader{buf: p}
	m := Signal{ID: r.string(), Signal: int(r.upTo(MaxSignal)), Group: r.bool()}
	return m, checkID(&r, m.ID)
}

// Input is a chunk for a process's pipe, or its end.
type Input struct {
	ID    string
	Data  []byte
	Close bool // after Data
}

// Append adds the message's payload to buf.
func (m Input) Append(buf []byte) []byte {
	return AppendBool(AppendString(AppendString(buf, m.ID), string(m.Data)), m.Close)
}

// ParseInput reads an Input whose Data points into p.
func ParseInput(p []byte) (Input, error) {
	r := reader{buf: p}
	m := Input{ID: r.string(), Data: r.bytes(), Close: r.bool()}
	return m, checkID(&r, m.ID)
}

// Resize changes the size of a process's terminal.
type Resize struct {
	ID   string
	Size Size
}

// Append adds the message's payload to buf.
func (m Resize) Append(buf []byte) []byte {
	return AppendUint(AppendUint(AppendString(buf, m.ID), uint64(m.Size.Rows)), uint64(m.Size.Cols))
}

// ParseResize reads a Resize.
func ParseResize(p []byte) (Resize, error) {
	r := reader{buf: p}
	m := Resize{ID: r.string(), Size: Size{Rows: uint16(r.upTo(1<<16 - 1)), Cols: uint16(r.upTo(1<<16 - 1))}}
	return m, checkID(&r, m.ID)
}

// AppendID is the payload of a request that names a process and no more.
func AppendID(buf []byte, id string) []byte { return AppendString(buf, id) }

// ParseID reads the payload of Forget.
func ParseID(p []byte) (string, error) {
	r := reader{buf: p}
	id := r.string()
	return id, checkID(&r, id)
}

func checkID(r *reader, id string) error {
	if err := r.done(); err != nil {
		return err
	}
	if !ValidID(id) {
		return ErrMalformed
	}
	return nil
}

// AppendCount is the payload of an answer that is one number: bytes taken by Input,
// processes ended by KillAll, the stem's pid for Ping.
func AppendCount(buf []byte, n int) []byte { return AppendUint(buf, uint64(n)) }

// ParseCount reads a number up to limit.
func ParseCount(p []byte, limit int) (int, error) {
	r := reader{buf: p}
	n := int(r.upTo(uint64(limit)))
	return n, r.done()
}

// Process is one line of the answer to List.
type Process struct {
	ID        string
	PID       int
	StartedUS int64
	Adopted   bool // started by an earlier stem; it has no stdin pipe any more
}

// AppendProcesses adds the payload of an answer to List to buf.
func AppendProcesses(buf []byte, list []Process) []byte {
	buf = AppendUint(buf, uint64(len(list)))
	for _, p := range list {
		buf = AppendString(buf, p.ID)
		buf = AppendUint(buf, uint64(p.PID))
		buf = AppendUint(buf, uint64(p.StartedUS))
		buf = AppendBool(buf, p.Adopted)
	}
	return buf
}

// ParseProcesses reads the answer to List.
func ParseProcesses(p []byte) ([]Process, error) {
	r := reader{buf: p}
	n := r.upTo(uint64(len(p)))
	var list []Process
	for range n {
		m := Process{ID: r.string(), PID: int(r.upTo(MaxPID)), StartedUS: int64(r.upTo(maxNumber)), Adopted: r.bool()}
		if r.bad || !ValidID(m.ID) {
			return nil, ErrMalformed
		}
		list = append(list, m)
	}
	return list, r.done()
}

// Failure is the payload of KindError.
type Failure struct {
	Code    string // one of the codes of package stem
	Message string
}

// maxText bounds the strings of a Failure.
const maxText = 1024

// Append adds the message's payload to buf, cut to what ParseFailure accepts.
func (m Failure) Append(buf []byte) []byte {
	return AppendString(AppendString(buf, m.Code), m.Message[:min(len(m.Message), maxText)])
}

// ParseFailure reads a Failure.
func ParseFailure(p []byte) (Failure, error) {
	r := reader{buf: p}
	m := Failure{Code: r.string(), Message: r.string()}
	if err := r.done(); err != nil {
		return Failure{}, err
	}
	if len(m.Code) > maxText || len(m.Message) > maxText {
		return Failure{}, ErrMalformed
	}
	return m, nil
}
