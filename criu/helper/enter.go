package helper

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"cairn/criu/internal/frame"

	"golang.org/x/sys/unix"
)

// enterVar holds the entry for the process that enters the namespaces.
const enterVar = "CAIRN_ENTER"

// entry is how CRIU is to be started.
type entry struct {
	Op      frame.Op
	Bundle  string
	Cgroups int
	LogFD   int
	Mapped  bool   // dump: the helper opens mapped files
	GateFD  int    // what to read one byte from before; 0 for nothing
	PIDs    []int  // pids that it may have, inside
	LastPID string // what the next process's pid is to be counted from, "" to leave it
}

const namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// Exit codes of the process that enters.
const (
	exitCgroup = 101 + iota
	exitSetns
	exitIdentity
	exitClone
	exitPrepare
	exitExec
)

// cloneArgs is struct clone_args of clone3(2), as of set_tid.
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls uint64
	setTID, setTIDSize                                                   uint64
}

// plan is all that the forked processes need, in memory that does not move: between fork
// and exec they may call nothing but the kernel.
type plan struct {
	cgroups  []int
	setTIDs  []uint64 // one pid each
	clone    cloneArgs
	path     *byte
	argv     []*byte
	envv     []*byte
	lastPID  []byte
	logFD    uintptr
	filter   unix.SockFprog
	hasFilt  bool
	listener unix.Msghdr // sends the descriptor of the filter, at listenFD
	listenFD *int32
	clear    bool
	sigMask  uint64
	sigIgn   [4]uint64
	zero     [1]byte
	sleep    unix.Timespec
	everyOne uint64
}

// swrk starts CRIU inside the namespaces and waits for it, in the place of the program that
// go-criu asks for. Its arguments are CRIU's: "swrk" and the number of the socket.
//
// A process of several threads can't join a user namespace, which is what a Go program is.
// So it forks as package syscall does, and the child makes the calls.
func swrk(socket string) int {
	runtime.LockOSThread()
	var e entry
	if err := json.Unmarshal([]byte(os.Getenv(enterVar)), &e); err != nil {
		fmt.Fprintln(os.Stderr, "cairn-criu: how to enter:", err)
		return 1
	}
	if e.Op == frame.OpProbe {
		fmt.Fprintln(os.Stderr, "cairn-criu:", e.execute(socket))
		return exitExec
	}
	p, err := e.plan(socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cairn-criu:", err)
		return 1
	}
	for _, fd := range append([]int{frame.FDPID, frame.FDLastPID, frame.FDHostImages}, p.cgroups...) {
		unix.CloseOnExec(fd)
	}
	if !e.pass() {
		return 0
	}
	child, errno := p.fork()
	if errno != 0 {
		fmt.Fprintln(os.Stderr, "cairn-criu: fork:", errno)
		return 1
	}
	// The socket is CRIU's alone: its end is how it learns of the helper's.
	if n, err := strconv.Atoi(socket); err == nil {
		unix.Close(n)
	}
	unix.Close(e.LogFD)
	code := wait(child)
	if code != 0 && e.Op == frame.OpRestore {
		// Who is half restored would hold CRIU's end of the socket for ever.
		p.clear = true
		p.cgroups = nil
		if child, errno := p.fork(); errno == 0 {
			wait(child)
		}
	}
	return code
}

// pass waits until the sandbox may be entered. It says no when the helper has given up.
func (e entry) pass() bool {
	if e.GateFD == 0 {
		return true
	}
	gate := os.NewFile(uintptr(e.GateFD), "gate")
	defer gate.Close()
	n, err := gate.Read(make([]byte, 1))
	return err == nil && n == 1
}

// wait reaps the child and the process that it started, and returns how the latter ended.
func wait(child int) int {
	code := 0
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return code
		}
		switch {
		case pid == child && ws.ExitStatus() != 0:
			return ws.ExitStatus()
		case pid == child:
		case ws.Signaled():
			code = 128 + int(ws.Signal())
		default:
			code = ws.ExitStatus()
		}
	}
}

func (e entry) plan(socket string) (*plan, error) {
	p := &plan{logFD: uintptr(e.LogFD)}
	for i := range e.Cgroups {
		p.cgroups = append(p.cgroups, frame.FDCgroup+i)
	}
	for _, pid := range e.PIDs {
		p.setTIDs = append(p.setTIDs, uint64(pid))
	}
	p.clone = cloneArgs{flags: unix.CLONE_PARENT}
	p.lastPID = []byte(e.LastPID)
	p.everyOne = ^uint64(0)
	p.sigIgn = [4]uint64{1} // SIG_IGN
	p.zero[0] = '0'
	p.sleep.Nsec = 300_000
	if e.Op == frame.OpClear {
		p.clear = true
		return p, nil
	}
	args := []string{e.Bundle + "/ld.so", "--library-path", e.Bundle, e.Bundle + "/criu", "swrk", socket}
	env := []string{"PATH=/nonexistent", "XDG_RUNTIME_DIR=/proc/self/fd/" + strconv.Itoa(frame.FDCache)}
	var err error
	if p.path, err = syscall.BytePtrFromString(args[0]); err != nil {
		return nil, err
	}
	if p.argv, err = syscall.SlicePtrFromStrings(args); err != nil {
		return nil, err
	}
	if p.envv, err = syscall.SlicePtrFromStrings(env); err != nil {
		return nil, err
	}
	if e.Op == frame.OpDump {
		insns := dumpFilter(e.Mapped)
		p.filter = unix.SockFprog{Len: uint16(len(insns)), Filter: &insns[0]}
		p.hasFilt = true
		p.prepareListener()
	}
	return p, nil
}

// prepareListener makes the message that carries the descriptor of the filter.
func (p *plan) prepareListener() {
	const fdLen = 4
	oob := make([]byte, unix.CmsgSpace(fdLen))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&oob[0]))
	h.Level, h.Type = unix.SOL_SOCKET, unix.SCM_RIGHTS
	h.SetLen(unix.CmsgLen(fdLen))
	p.listenFD = (*int32)(unsafe.Pointer(&oob[unix.CmsgLen(0)]))
	iov := &unix.Iovec{Base: &p.zero[0]}
	iov.SetLen(1)
	p.listener = unix.Msghdr{Iov: iov, Control: &oob[0]}
	p.listener.SetIovlen(1)
	p.listener.SetControllen(len(oob))
}

// fork makes the process that enters. It returns twice only in the kernel's sense: the
// child never leaves it.
//
//go:noinline
//go:norace
//go:nocheckptr
func (p *plan) fork() (int, syscall.Errno) {
	const blockAll, setMask, maskSize = 0, 2, 8
	// No handler of the runtime's may run in the child.
	_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, blockAll, uintptr(unsafe.Pointer(&p.everyOne)), uintptr(unsafe.Pointer(&p.sigMask)), maskSize, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 && pid == 0 {
		p.enter()
	}
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, setMask, uintptr(unsafe.Pointer(&p.sigMask)), 0, maskSize, 0, 0)
	return int(pid), errno
}

// enter runs in the first child: it joins the groups and the namespaces and makes the
// process that becomes CRIU, as a child of this one's parent.
//
//go:noinline
//go:norace
//go:nocheckptr
//go:nosplit
func (p *plan) enter() {
	for i := 0; i < len(p.cgroups); i++ {
		if _, _, errno := syscall.RawSyscall(unix.SYS_WRITE, uintptr(p.cgroups[i]), uintptr(unsafe.Pointer(&p.zero[0])), 1); errno != 0 {
			exit(exitCgroup)
		}
	}
	if _, _, errno := syscall.RawSyscall(unix.SYS_SETNS, frame.FDPID, namespaces, 0); errno != 0 {
		exit(exitSetns)
	}
	_, _, e1 := syscall.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
	_, _, e2 := syscall.RawSyscall(unix.SYS_SETRESGID, 0, 0, 0)
	_, _, e3 := syscall.RawSyscall(unix.SYS_SETRESUID, 0, 0, 0)
	if e1 != 0 || e2 != 0 || e3 != 0 {
		exit(exitIdentity)
	}
	for i := 0; i < len(p.setTIDs); i++ {
		p.clone.setTID = uint64(uintptr(unsafe.Pointer(&p.setTIDs[i])))
		p.clone.setTIDSize = 1
		pid, _, errno := syscall.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&p.clone)), unsafe.Sizeof(p.clone), 0)
		if errno == unix.EEXIST {
			continue
		}
		if errno != 0 {
			exit(exitClone)
		}
		if pid == 0 {
			p.become()
		}
		exit(0)
	}
	exit(exitClone)
}

// become runs in the second child, inside: it executes CRIU.
//
//go:noinline
//go:norace
//go:nocheckptr
//go:nosplit
func (p *plan) become() {
	const setMask, maskSize = 2, 8
	if p.clear {
		p.killAll()
	}
	if len(p.lastPID) > 0 {
		if _, _, errno := syscall.RawSyscall(unix.SYS_WRITE, frame.FDLastPID, uintptr(unsafe.Pointer(&p.lastPID[0])), uintptr(len(p.lastPID))); errno != 0 {
			exit(exitPrepare)
		}
	}
	if _, _, errno := syscall.RawSyscall(unix.SYS_DUP3, p.logFD, 2, 0); errno != 0 {
		exit(exitPrepare)
	}
	syscall.RawSyscall(unix.SYS_CLOSE, p.logFD, 0, 0)
	// When the helper is gone CRIU must go through its own clean-up, not die of a signal.
	syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGPIPE), uintptr(unsafe.Pointer(&p.sigIgn[0])), 0, maskSize, 0, 0)
	p.sigMask = 0
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, setMask, uintptr(unsafe.Pointer(&p.sigMask)), 0, maskSize, 0, 0)
	if p.hasFilt {
		// CRIU dumps segments only for a tree that has an IPC namespace which is not CRIU's.
		if _, _, errno := syscall.RawSyscall(unix.SYS_UNSHARE, unix.CLONE_NEWIPC, 0, 0); errno != 0 {
			exit(exitPrepare)
		}
		const setModeFilter, newListener = 1, 1 << 3
		fd, _, errno := syscall.RawSyscall(unix.SYS_SECCOMP, setModeFilter, newListener, uintptr(unsafe.Pointer(&p.filter)))
		if errno != 0 {
			exit(exitPrepare)
		}
		*p.listenFD = int32(fd) // closed on exec
		if _, _, errno := syscall.RawSyscall(unix.SYS_SENDMSG, 2, uintptr(unsafe.Pointer(&p.listener)), 0); errno != 0 {
			exit(exitPrepare)
		}
	}
	syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(p.path)), uintptr(unsafe.Pointer(&p.argv[0])), uintptr(unsafe.Pointer(&p.envv[0])))
	exit(exitExec)
}

// killAll kills every process but PID 1 and itself until none is left, not even a zombie.
// It gives up after about ten seconds.
//
//go:noinline
//go:norace
//go:nocheckptr
//go:nosplit
func (p *plan) killAll() {
	const everyone = ^uintptr(0) // -1
	gone := 0
	for i := 0; i < 20000; i++ {
		// ESRCH is also the answer when the last one looked at is just being reaped, whoever
		// else there is: it has to be had twice.
		if _, _, errno := syscall.RawSyscall(unix.SYS_KILL, everyone, uintptr(unix.SIGKILL), 0); errno != unix.ESRCH {
			gone = 0
		} else if gone++; gone == 2 {
			exit(0)
		}
		syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&p.sleep)), 0, 0)
	}
	exit(1)
}

//go:norace
//go:nosplit
func exit(code uintptr) {
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, code, 0, 0)
	}
}

// entered explains the exit code of swrk.
func entered(code int) string {
	switch code {
	case exitCgroup:
		return "can't join the container's control groups"
	case exitSetns:
		return "can't join the container's namespaces"
	case exitIdentity:
		return "can't become root of the container's user namespace"
	case exitClone:
		return "can't make a process in the container"
	case exitPrepare:
		return "can't prepare CRIU's process"
	case exitExec:
		return "can't execute CRIU: its bundle is missing or does not fit this machine"
	}
	return "CRIU ended with code " + strconv.Itoa(code)
}
