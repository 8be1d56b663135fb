package helper

import (
	"errors"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// CRIU looks for the path of a watched file by the file's handle, which only the host's
// root may open, and which overlayfs can't open at all. Left alone it then walks through
// the sandbox's whole file system, /proc included, with the tree stopped. So its system
// call filter lets the helper answer open_by_handle_at in the kernel's place: see resolver.

// notification is struct seccomp_notif.
type notification struct {
	ID    uint64
	PID   uint32
	Flags uint32
	NR    int32
	Arch  uint32
	IP    uint64
	Args  [6]uint64
}

// response is struct seccomp_notif_resp, addition struct seccomp_notif_addfd.
type (
	response struct {
		ID    uint64
		Val   int64
		Error int32
		Flags uint32
	}
	addition struct {
		ID              uint64
		Flags           uint32
		SrcFD           uint32
		NewFD, NewFlags uint32
	}
)

const (
	notifRecv  = 0xc0502100
	notifSend  = 0xc0182101
	notifAddFD = 0x40182103
	addFDSend  = 1 << 1 // answer with the number of the new descriptor
	goOn       = 1 << 0 // let the kernel answer
)

// receiveListener takes the descriptor of CRIU's filter from the socket that CRIU logs to.
// There is none when CRIU did not come so far.
func receiveListener(log *os.File) *os.File {
	buf, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	n, k, _, _, err := unix.Recvmsg(int(log.Fd()), buf, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil || n == 0 {
		return nil
	}
	messages, err := unix.ParseSocketControlMessage(oob[:k])
	if err != nil || len(messages) != 1 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil
	}
	return os.NewFile(uintptr(fds[0]), "listener")
}

// answer answers what CRIU asks until no process has its filter any more.
func answer(listener *os.File, r *resolver) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd := int(listener.Fd())
	for {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return
		}
		if p[0].Revents&unix.POLLIN == 0 {
			return
		}
		var n notification
		if errno := ioctl(fd, notifRecv, unsafe.Pointer(&n)); errno != 0 {
			continue // whoever asked is gone
		}
		var found *os.File
		var err error
		pid, at := int(n.PID), int(int32(n.Args[0]))
		if n.NR == unix.SYS_OPENAT {
			if found = openMapped(pid, at, uintptr(n.Args[1])); found == nil {
				ioctl(fd, notifSend, unsafe.Pointer(&response{ID: n.ID, Flags: goOn}))
				continue
			}
		} else {
			found, err = r.resolve(pid, at, uintptr(n.Args[1]))
		}
		if err != nil {
			code := unix.ESTALE
			errors.As(err, &code)
			ioctl(fd, notifSend, unsafe.Pointer(&response{ID: n.ID, Error: -int32(code)}))
			continue
		}
		a := addition{ID: n.ID, Flags: addFDSend, SrcFD: uint32(found.Fd())}
		errno := ioctl(fd, notifAddFD, unsafe.Pointer(&a))
		found.Close()
		if errno != 0 && errno != unix.ENOENT {
			ioctl(fd, notifSend, unsafe.Pointer(&response{ID: n.ID, Error: -int32(errno)}))
		}
	}
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	return errno
}
