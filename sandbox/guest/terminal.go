package guest

import (
	"os"
	"runtime"
	"sync"

	"cairn/sandbox/stem/wire"

	"golang.org/x/sys/unix"
)

const (
	// ptmxPath is the multiplexer of the sandbox's own devpts, whatever /dev/ptmx may be.
	ptmxPath = "/dev/pts/ptmx"
	// copySize is how much output is moved at a time, in bytes. The kernel's side of a
	// terminal holds 4 KiB.
	copySize = 4 << 10
	// maxDrain bounds what is taken over after the process has ended, in bytes: others may
	// go on writing for ever. It is more than the kernel holds back.
	maxDrain = 256 << 10
)

// terminal is the stem's side of a process's terminal: the pty master, whose output is
// copied to the process's file stdout.
//
// All there is of it is two descriptors and a goroutine that waits in the runtime's poller,
// so that a stem that was dumped and restored goes on with its terminals. Output that the
// file can't take (the disk is full) is dropped rather than waited for: the shell stays
// usable, to make room for one thing, and a line in the output says how much is missing.
type terminal struct {
	master *os.File

	mu   sync.Mutex // keeps the order of the output
	out  int        // the file stdout; -1 when closed
	lost int        // bytes dropped since the last that could be written
	buf  [copySize]byte
}

// openTerminal opens a new terminal, owned by who, and returns the process's side too.
func openTerminal(size wire.Size, who identity) (t *terminal, slave int, err error) {
	fd, err := unix.Open(ptmxPath, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, -1, terminalFailure(err)
	}
	slave = -1
	err = func() error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		// By descriptor: what is at /dev/pts/N may be anything.
		peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
		if errno != 0 {
			return errno
		}
		slave = int(peer)
		if err := unix.Fchown(slave, int(who.uid), -1); err != nil {
			return err
		}
		return setSize(fd, size)
	}()
	if err != nil {
		unix.Close(fd)
		if slave >= 0 {
			unix.Close(slave)
		}
		return nil, -1, terminalFailure(err)
	}
	return &terminal{master: os.NewFile(uintptr(fd), "terminal"), out: -1}, slave, nil
}

func terminalFailure(err error) error {
	f := asFailure(err) // ENOSPC: there are as many as the devpts allows
	f.message = "terminal: " + f.message
	return f
}

func setSize(fd int, size wire.Size) error {
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
}

// control calls f with the master's descriptor.
func (t *terminal) control(f func(fd int) error) error {
	raw, err := t.master.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) { err = f(int(fd)) })
	if cerr != nil {
		return cerr
	}
	return err
}

// resize changes the size; the kernel tells the foreground processes.
func (t *terminal) resize(size wire.Size) error {
	return t.control(func(fd int) error { return setSize(fd, size) })
}

// foreground returns the foreground process group, 0 when there is none.
func (t *terminal) foreground() int {
	group := 0
	err := t.control(func(fd int) (err error) {
		group, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err
	})
	if err != nil || group <= 1 {
		return 0
	}
	return group
}

// endOfFile returns what is typed to end the input, as the terminal is set.
func (t *terminal) endOfFile() []byte {
	const ctrlD = 4
	eof := byte(ctrlD)
	err := t.control(func(fd int) error {
		// Of a master the kernel answers with the other side's settings.
		tio, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err == nil && tio.Cc[unix.VEOF] != 0 {
			eof = tio.Cc[unix.VEOF]
		}
		return err
	})
	if err != nil {
		return []byte{ctrlD}
	}
	return []byte{eof}
}

// copyOutput moves output to the file until the terminal is closed.
func (t *terminal) copyOutput() {
	raw, err := t.master.SyscallConn()
	if err != nil {
		return
	}
	// It ends when the master is closed; there is nothing to say about that. EIO means only
	// that nobody has the other side open now: it may be opened again by its name.
	_ = raw.Read(func(fd uintptr) bool {
		for t.copyOnce(int(fd)) > 0 {
			runtime.Gosched() // requests go first
		}
		return false
	})
}

// drain moves what is left, once the process has ended.
func (t *terminal) drain() {
	_ = t.control(func(fd int) error {
		for total := 0; total < maxDrain; {
			n := t.copyOnce(fd)
			if n <= 0 {
				break
			}
			total += n
		}
		return nil
	})
}

// copyOnce moves a piece of output and returns its size, 0 or less when there is none now.
func (t *terminal) copyOnce(fd int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.out >= 0 {
		n, err := unix.Read(fd, t.buf[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0
		}
		if n > 0 {
			t.write(t.buf[:n])
		}
		return n
	}
	return 0
}

func (t *terminal) write(b []byte) {
	if t.lost > 0 {
		note := []byte("\r\n[" + itoa(t.lost) + " bytes of output are missing: there was no room on the disk]\r\n")
		if n, err := unix.Write(t.out, note); err != nil || n < len(note) {
			t.lost += len(b)
			return
		}
		t.lost = 0
	}
	for len(b) > 0 {
		n, err := unix.Write(t.out, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.lost += len(b)
			return
		}
		b = b[n:]
	}
}

// close hangs up.
func (t *terminal) close() {
	t.mu.Lock()
	if t.out >= 0 {
		unix.Close(t.out)
		t.out = -1
	}
	t.mu.Unlock()
	t.master.Close()
}

// job returns the process group in the foreground of the process's terminal, 0 when that is
// the process's own or there is none.
func (p *process) job() int {
	if p.terminal == nil {
		return 0
	}
	if group := p.terminal.foreground(); group != p.pid {
		return group
	}
	return 0
}

// hangUp closes the stem's side of the process's input, and of its terminal.
func (p *process) hangUp() {
	if p.terminal != nil {
		p.terminal.close()
	} else if p.input != nil {
		p.input.Close()
	}
}

func (s *stem) resize(m wire.Resize) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.lookup(m.ID)
	if err != nil {
		return err
	}
	if p.terminal == nil {
		return failure{wire.CodeBadRequest, m.ID + " has no terminal"}
	}
	return p.terminal.resize(m.Size)
}
