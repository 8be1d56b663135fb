package stem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"cairn/sandbox/stem/wire"

	"golang.org/x/sys/unix"
)

const (
	defaultTimeout = 10 * time.Second
	// chunk is how much input goes into one request: little, so that the stem stays small.
	chunk = 32 << 10

	minRetry = 500 * time.Microsecond
	maxRetry = 20 * time.Millisecond

	// maxEnding bounds the connections of a client that are being ended in the background.
	maxEnding = 16
)

// Options of a Client.
type Options struct {
	// Watcher wakes Wait and Follow. Required; shared by all clients of a program.
	Watcher *Watcher
	// Timeout bounds one request, connecting included. 0 is 10 s.
	Timeout time.Duration
	// MaxOutput bounds the bytes of one output stream that Wait and Follow put up with.
	// 0 is no bound.
	MaxOutput int64
}

// Client talks to the stem of one sandbox. It is safe for concurrent use.
type Client struct {
	opts     Options
	uid, gid int           // owner of the directory: the sandbox's root
	tick     time.Duration // safetyTick

	gate   *gate
	ending chan struct{} // holds one for each connection that is being ended in the background

	mu  sync.RWMutex
	dir int // O_PATH; -1 when closed

	suspended map[string]int // by process id: how often Suspend is in force
}

// Open makes a client for the slot directory at path. The stem need not run yet.
func Open(path string, o Options) (*Client, error) {
	if o.Watcher == nil {
		return nil, &Error{Code: BadRequest, Op: "open", Err: errors.New("a watcher is required")}
	}
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, openError("open", path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, &Error{Code: Internal, Op: "open", Err: err}
	}
	return &Client{opts: o, gate: newGate(), ending: make(chan struct{}, maxEnding), tick: safetyTick, dir: fd, suspended: map[string]int{}, uid: int(st.Uid), gid: int(st.Gid)}, nil
}

// Close lets go of the directory. The sandbox and its processes are not touched.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dir < 0 {
		return nil
	}
	err := unix.Close(c.dir)
	c.dir = -1
	return err
}

func (c *Client) withDir(f func(fd int) error) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.dir < 0 {
		return os.ErrClosed
	}
	return f(c.dir)
}

// connect connects to the stem's socket itself, not to a path that may have changed since
// it was looked at. It goes on trying while there is no stem: PID 1 may be starting one.
func (c *Client) connect(ctx context.Context, op string) (*net.UnixConn, error) {
	retry := minRetry
	for {
		conn, err := c.connectOnce(ctx, op)
		if err == nil || !isAbsent(err) {
			return conn, err
		}
		timer := time.NewTimer(retry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, &Error{Code: Unreachable, Op: op, Err: errors.Join(context.Cause(ctx), err)}
		case <-timer.C:
			retry = min(2*retry, maxRetry)
		}
	}
}

func isAbsent(err error) bool {
	return errors.Is(err, NotFound) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EAGAIN)
}

func (c *Client) connectOnce(ctx context.Context, op string) (*net.UnixConn, error) {
	fd, err := c.open(op, wire.FileSocket, unix.O_PATH, unix.S_IFSOCK)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", procFD(fd))
	if err != nil {
		return nil, &Error{Code: Unreachable, Op: op, Err: errors.Join(context.Cause(ctx), err)}
	}
	return conn.(*net.UnixConn), nil
}

// call makes one request on a connection of its own and returns the answer's payload.
func (c *Client) call(ctx context.Context, op string, kind wire.Kind, payload []byte) ([]byte, error) {
	frame, err := wire.AppendFrame(nil, kind, payload)
	if err != nil {
		return nil, &Error{Code: Limit, Op: op, Err: err}
	}
	if err := c.gate.enter(ctx); err != nil {
		return nil, &Error{Code: Unreachable, Op: op, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	conn, err := c.connect(ctx, op)
	if err != nil {
		c.gate.leave()
		return nil, err
	}
	reply, answer, err := exchange(ctx, conn, frame)
	if err != nil {
		conn.Close()
		c.gate.leave()
		return nil, c.exchangeError(ctx, op, err)
	}
	c.hangUp(conn)
	switch reply {
	case wire.KindOK:
		return answer, nil
	case wire.KindError:
		f, err := wire.ParseFailure(answer)
		if err != nil {
			return nil, &Error{Code: Protocol, Op: op, Err: err}
		}
		return nil, &Error{Code: known(f.Code), Op: op, Message: f.Message}
	default:
		return nil, &Error{Code: Protocol, Op: op, Err: fmt.Errorf("answer of kind %#x", uint8(reply))}
	}
}

// exchange sends a request and reads the answer. An ended context ends it by closing the
// connection under it.
func exchange(ctx context.Context, conn *net.UnixConn, frame []byte) (wire.Kind, []byte, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if _, err := conn.Write(frame); err != nil {
		return 0, nil, err
	}
	return wire.ReadFrame(conn, wire.MaxReply)
}

// hangUp ends a connection. Once the stem has closed its side too, nothing is left of it: see
// Quiet. The answer does not wait for that, unless the stem leaves too many open.
func (c *Client) hangUp(conn *net.UnixConn) {
	end := func() {
		defer c.gate.leave()
		defer conn.Close()
		if conn.SetReadDeadline(time.Now().Add(c.opts.Timeout)) == nil && conn.CloseWrite() == nil {
			_, _ = conn.Read(make([]byte, 1))
		}
	}
	select {
	case c.ending <- struct{}{}:
		go func() {
			defer func() { <-c.ending }()
			end()
		}()
	default:
		end()
	}
}

// query is call for requests that change nothing: when the stem dies under it, the next
// one is asked, within the same time.
func (c *Client) query(ctx context.Context, op string, kind wire.Kind) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	for {
		answer, err := c.call(ctx, op, kind, nil)
		if !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) && !errors.Is(err, io.EOF) {
			return answer, err
		}
		timer := time.NewTimer(maxRetry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		case <-timer.C:
		}
	}
}

func (c *Client) exchangeError(ctx context.Context, op string, err error) error {
	if errors.Is(err, wire.ErrMalformed) || errors.Is(err, wire.ErrTooLarge) || errors.Is(err, wire.ErrVersion) {
		return &Error{Code: Protocol, Op: op, Err: err}
	}
	return &Error{Code: Unreachable, Op: op, Err: errors.Join(context.Cause(ctx), err)}
}

func checkID(op, id string) error {
	if !wire.ValidID(id) {
		return &Error{Code: BadRequest, Op: op, Err: fmt.Errorf("malformed process id %q", id)}
	}
	return nil
}

// Ping returns once the stem answers, with its pid inside the sandbox. It waits for a stem
// that is being started, up to Options.Timeout.
func (c *Client) Ping(ctx context.Context) (int, error) {
	answer, err := c.query(ctx, "ping", wire.KindPing)
	if err != nil {
		return 0, err
	}
	pid, err := wire.ParseCount(answer, wire.MaxPID)
	if err != nil {
		return 0, &Error{Code: Protocol, Op: "ping", Err: err}
	}
	return pid, nil
}

// Request is a process to start.
type Request struct {
	ID   string   // 1 to 64 of [A-Za-z0-9_-], not used before in this sandbox
	Argv []string // Argv[0] is looked up along PATH of Env, inside
	Env  []string // "NAME=value"; PATH and HOME are added when absent
	Cwd  string   // absolute; "" is "/"
	User string   // "name|uid[:group|gid]", resolved inside; "" is root
	// Stdin is read to its end, into a file, before the process starts. It excludes Pipe.
	Stdin io.Reader
	// Pipe gives the process a pipe to read from, fed by WriteStdin. Without Stdin and Pipe it
	// reads /dev/null.
	Pipe bool
	// TTY, if not nil, gives the process a terminal of that size: its input, fed by WriteStdin,
	// and its output, all of it in Stdout. It excludes Stdin and Pipe.
	TTY *Size
}

// Started is a process that runs, or has run.
type Started struct {
	PID       int // in the sandbox's pid namespace
	StartedAt time.Time
}

// Start starts a process in a session of its own. When the stem refuses, nothing is left
// of it. After an Unreachable error it may run all the same: Signal or Wait tells.
func (c *Client) Start(ctx context.Context, r Request) (Started, error) {
	const op = "start"
	if err := checkID(op, r.ID); err != nil {
		return Started{}, err
	}
	m := wire.Start{ID: r.ID, Argv: r.Argv, Env: r.Env, Cwd: r.Cwd, User: r.User, TTY: r.TTY}
	switch {
	case r.TTY != nil && (r.Stdin != nil || r.Pipe):
		return Started{}, &Error{Code: BadRequest, Op: op, Err: errors.New("a terminal is the input")}
	case r.Stdin != nil && r.Pipe:
		return Started{}, &Error{Code: BadRequest, Op: op, Err: errors.New("input both from a file and from a pipe")}
	case r.Stdin != nil:
		m.Stdin = wire.StdinFile
	case r.Pipe:
		m.Stdin = wire.StdinPipe
	}
	payload := m.Append(nil)
	if _, err := wire.ParseStart(payload); err != nil {
		return Started{}, &Error{Code: BadRequest, Op: op, Err: errors.New("an empty command, or a NUL byte in a string")}
	}
	if r.Stdin != nil {
		if err := c.prepare(op, r.ID, r.Stdin); err != nil {
			if !errors.Is(err, Exists) {
				c.discard(r.ID)
			}
			return Started{}, err
		}
	}
	answer, err := c.call(ctx, op, wire.KindStart, payload)
	if err != nil {
		if code := CodeOf(err); code != Unreachable && code != Protocol && code != Exists {
			c.discard(r.ID)
		}
		return Started{}, err
	}
	s, err := wire.ParseStarted(answer)
	if err != nil {
		return Started{}, &Error{Code: Protocol, Op: op, Err: err}
	}
	return Started{PID: s.PID, StartedAt: time.UnixMicro(s.StartedUS)}, nil
}

// Signal sends a signal to a process or, with group, to its process group and to the one in
// the foreground of its terminal. NotRunning: it has ended.
func (c *Client) Signal(ctx context.Context, id string, sig syscall.Signal, group bool) error {
	const op = "signal"
	if err := checkID(op, id); err != nil {
		return err
	}
	if sig < 0 || sig > wire.MaxSignal {
		return &Error{Code: BadRequest, Op: op, Err: fmt.Errorf("signal %d", int(sig))}
	}
	_, err := c.call(ctx, op, wire.KindSignal, wire.Signal{ID: id, Signal: int(sig), Group: group}.Append(nil))
	return err
}

// WriteStdin writes data into the pipe of a process started with Pipe, or types it at its
// terminal, waiting while there is no room, and returns how much was taken. NotRunning:
// nobody reads any more.
func (c *Client) WriteStdin(ctx context.Context, id string, data []byte) (int, error) {
	written := 0
	for written < len(data) {
		part := data[written:min(len(data), written+chunk)]
		n, err := c.input(ctx, wire.Input{ID: id, Data: part})
		written += n
		if err != nil {
			return written, err
		}
		if err := context.Cause(ctx); err != nil {
			return written, err
		}
	}
	return written, nil
}

// CloseStdin ends the input of a process started with Pipe; at a terminal it types the
// character that means the end of a file, as the terminal is set, and more may follow.
func (c *Client) CloseStdin(ctx context.Context, id string) error {
	_, err := c.input(ctx, wire.Input{ID: id, Close: true})
	return err
}

func (c *Client) input(ctx context.Context, m wire.Input) (int, error) {
	const op = "stdin"
	if err := checkID(op, m.ID); err != nil {
		return 0, err
	}
	answer, err := c.call(ctx, op, wire.KindStdin, m.Append(nil))
	if err != nil {
		return 0, err
	}
	n, err := wire.ParseCount(answer, len(m.Data))
	if err != nil {
		return 0, &Error{Code: Protocol, Op: op, Err: err}
	}
	return n, nil
}

// Process is a running process that was started through the stem.
type Process struct {
	ID        string
	PID       int
	StartedAt time.Time
	Adopted   bool // started by an earlier stem: its input pipe is gone
}

// List returns the running processes, in no order.
func (c *Client) List(ctx context.Context) ([]Process, error) {
	answer, err := c.query(ctx, "list", wire.KindList)
	if err != nil {
		return nil, err
	}
	items, err := wire.ParseProcesses(answer)
	if err != nil {
		return nil, &Error{Code: Protocol, Op: "list", Err: err}
	}
	list := make([]Process, 0, len(items))
	for _, p := range items {
		list = append(list, Process{ID: p.ID, PID: p.PID, StartedAt: time.UnixMicro(p.StartedUS), Adopted: p.Adopted})
	}
	return list, nil
}

// Forget removes what is kept of a process that has ended, its output included. Busy: it runs.
func (c *Client) Forget(ctx context.Context, id string) error {
	if err := checkID("forget", id); err != nil {
		return err
	}
	_, err := c.call(ctx, "forget", wire.KindForget, wire.AppendID(nil, id))
	return err
}

// KillAll kills every process of the sandbox but PID 1 and the stem and returns when they
// are gone and recorded, with the number of those started through the stem. Limit: some
// could not be ended within the stem's patience (10 s).
func (c *Client) KillAll(ctx context.Context) (int, error) {
	answer, err := c.call(ctx, "kill_all", wire.KindKillAll, nil)
	if err != nil {
		return 0, err
	}
	n, err := wire.ParseCount(answer, wire.MaxPID)
	if err != nil {
		return 0, &Error{Code: Protocol, Op: "kill_all", Err: err}
	}
	return n, nil
}

// HoldStem keeps PID 1 from starting a stem, for one is about to be restored. The present
// stem goes on.
func (c *Client) HoldStem() error {
	fd, err := c.open("hold", wire.FileNoStem, unix.O_WRONLY|unix.O_CREAT, unix.S_IFREG)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// ReleaseStem undoes HoldStem: within 100 ms, or at once on SIGUSR1, PID 1 finds the restored
// stem or starts another.
func (c *Client) ReleaseStem() error {
	err := c.withDir(func(dir int) error { return unix.Unlinkat(dir, wire.FileNoStem, 0) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return &Error{Code: Internal, Op: "release", Err: err}
	}
	return nil
}
