package guest

import (
	"errors"
	"os"
	"strings"
	"syscall"

	"cairn/sandbox/stem/wire"

	"golang.org/x/sys/unix"
)

// defaultTerm is what TERM says when the request does not.
const defaultTerm = "xterm"

// plan is a start request made ready to execute.
type plan struct {
	file  string
	argv  []string
	env   []string
	cwd   string
	who   identity
	stdin wire.Stdin
	tty   *wire.Size // nil: no terminal
}

// newPlan resolves the user, the working directory and the command inside the present root.
func newPlan(m *wire.Start) (*plan, error) {
	if m.TTY != nil && m.Stdin != wire.StdinNone {
		return nil, failure{wire.CodeBadRequest, "a terminal is the input"}
	}
	who, err := resolveUser(m.User, readUserFiles)
	if err != nil {
		return nil, err
	}
	p := &plan{argv: m.Argv, env: m.Env, cwd: m.Cwd, who: who, stdin: m.Stdin, tty: m.TTY}
	if p.cwd == "" {
		p.cwd = "/"
	}
	if !strings.HasPrefix(p.cwd, "/") {
		return nil, failure{wire.CodeBadCwd, "the working directory is not an absolute path"}
	}
	path, ok := getenv(p.env, "PATH")
	if !ok {
		path = defaultPath
		p.env = append(p.env, "PATH="+path)
	}
	if _, ok := getenv(p.env, "HOME"); !ok {
		p.env = append(p.env, "HOME="+who.home)
	}
	if _, ok := getenv(p.env, "TERM"); !ok && p.tty != nil {
		p.env = append(p.env, "TERM="+defaultTerm)
	}
	err = asUser(who, func() error {
		if err := checkCwd(p.cwd); err != nil {
			return err
		}
		p.file, err = findCommand(p.argv[0], path, p.cwd)
		return err
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// streams are a new process's descriptors 0, 1 and 2.
type streams struct {
	fds      [3]int
	input    *os.File  // what input is written to: the pipe's other end or the terminal; nil for none
	terminal *terminal // nil for none
}

// openStreams opens the standard descriptors of a process. Output files are the host's to
// read and the process's to write, so that a program may open /dev/stdout again. With a
// terminal, all three are its other side, the stem writes to stdout, and stderr stays empty.
func (p *plan) openStreams(r records, id string) (*streams, error) {
	s := &streams{fds: [3]int{-1, -1, -1}}
	err := func() error {
		fresh, err := r.makeDir(id)
		if err != nil {
			return err
		}
		for i, name := range []string{wire.FileStdout, wire.FileStderr} {
			fd, err := r.makeOutput(id, name, fresh)
			if err != nil {
				return err
			}
			s.fds[i+1] = fd
			if p.who.uid == 0 && p.who.gid == 0 {
				continue // as the stem
			}
			if err := unix.Fchown(fd, int(p.who.uid), int(p.who.gid)); err != nil {
				return err
			}
		}
		if p.tty != nil {
			return s.openTerminal(*p.tty, p.who)
		}
		return s.openInput(r, id, p.stdin)
	}()
	if err != nil {
		s.close()
		s.abandon()
		if errors.Is(err, unix.EEXIST) {
			return nil, failure{wire.CodeExists, id + " has been started before"}
		}
		return nil, err
	}
	return s, nil
}

// openTerminal replaces the files, which the terminal's output goes to, by the terminal.
func (s *streams) openTerminal(size wire.Size, who identity) error {
	t, slave, err := openTerminal(size, who)
	if err != nil {
		return err
	}
	t.out = s.fds[1]
	unix.Close(s.fds[2])
	s.fds = [3]int{slave, slave, slave}
	s.terminal, s.input = t, t.master
	return nil
}

func (s *streams) openInput(r records, id string, mode wire.Stdin) (err error) {
	switch mode {
	case wire.StdinFile:
		s.fds[0], err = unix.Open(r.path(id, wire.FileStdin),
			unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if !isRegular(s.fds[0]) {
			return unix.EINVAL
		}
		return unix.SetNonblock(s.fds[0], false)
	case wire.StdinPipe:
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			return err
		}
		s.fds[0] = ends[0]
		// Only the writing end: the reader expects an ordinary, blocking pipe.
		if err := unix.SetNonblock(ends[1], true); err != nil {
			unix.Close(ends[1])
			return err
		}
		s.input = os.NewFile(uintptr(ends[1]), wire.FileStdin)
		return nil
	default:
		s.fds[0], err = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	}
}

// close closes the process's ends.
func (s *streams) close() {
	for i, fd := range s.fds {
		if fd >= 0 && (i == 0 || fd != s.fds[0]) {
			unix.Close(fd)
		}
	}
}

// abandon closes the stem's ends.
func (s *streams) abandon() {
	if s.terminal != nil {
		s.terminal.close()
	} else if s.input != nil {
		s.input.Close()
	}
}

// spawn executes the plan in a new session and returns the pid.
func (p *plan) spawn(s *streams) (int, error) {
	attr := &syscall.ProcAttr{
		Dir:   p.cwd,
		Env:   p.env,
		Files: []uintptr{uintptr(s.fds[0]), uintptr(s.fds[1]), uintptr(s.fds[2])},
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			Setctty:    p.tty != nil, // it is descriptor 0
			Credential: &syscall.Credential{Uid: p.who.uid, Gid: p.who.gid, Groups: p.who.groups},
		},
	}
	pid, err := syscall.ForkExec(p.file, p.argv, attr)
	stayVisible()
	if err == nil {
		return pid, nil
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return 0, commandFailure(p.argv[0], errno)
	}
	return 0, err
}
