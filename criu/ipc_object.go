package criu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Constants of <linux/ipc.h>, <linux/sem.h> and <linux/msg.h>.
const (
	ipcCreat, ipcExcl        = 0o1000, 0o2000
	ipcRmid, ipcSet, ipcStat = 0, 1, 2
	semGetAll, semSetAll     = 13, 17
	msgNoError, msgCopy      = 0o10000, 0o40000
	ipcNoWait                = 0o4000
	msgQBytesAt, msgDescLen  = 88, 256 // of struct msqid64_ds on 64 bits
	msgQNumAt                = 80
	shmReadOnly              = 0o10000
	msgTypeLen               = 8
	mostText                 = 1 << 20
)

// read reads what an object holds.
func (o *ipcObject) read(s *shmSaver) error {
	switch o.Kind {
	case ipcShm:
		return withSegment(o.ID, true, func(f *os.File) (err error) {
			o.Data, err = s.data(f, o.Size)
			return err
		})
	case ipcSem:
		if len(o.Values) == 0 {
			return nil
		}
		return ipcCall(unix.SYS_SEMCTL, uintptr(o.ID), 0, semGetAll, uintptr(unsafe.Pointer(&o.Values[0])))
	case ipcMsg:
		return o.readMessages()
	}
	return nil
}

func (o *ipcObject) readMessages() error {
	desc := make([]byte, msgDescLen)
	if err := ipcCall(unix.SYS_MSGCTL, uintptr(o.ID), ipcStat, uintptr(unsafe.Pointer(&desc[0])), 0); err != nil {
		return err
	}
	o.QBytes = binary.NativeEndian.Uint64(desc[msgQBytesAt:])
	n := binary.NativeEndian.Uint64(desc[msgQNumAt:])
	if n > mostMessages {
		return errors.New("it has too many messages")
	}
	buf := make([]byte, msgTypeLen+mostText)
	for i := range n {
		k, _, errno := unix.Syscall6(unix.SYS_MSGRCV, uintptr(o.ID), uintptr(unsafe.Pointer(&buf[0])), mostText, uintptr(i), msgCopy|ipcNoWait, 0)
		if errno != 0 {
			return fmt.Errorf("read a message: %w", errno)
		}
		o.Messages = append(o.Messages, ipcMessage{Type: int64(binary.NativeEndian.Uint64(buf)), Text: slices.Clone(buf[msgTypeLen : msgTypeLen+k])})
	}
	return nil
}

// withSegment attaches a segment and calls fn with its memory as a file, in which holes are
// holes.
func withSegment(id int32, readOnly bool, fn func(*os.File) error) error {
	flag, open := 0, os.O_RDWR
	if readOnly {
		flag, open = shmReadOnly, os.O_RDONLY
	}
	mem, err := unix.SysvShmAttach(int(id), 0, flag)
	if err != nil {
		return err
	}
	defer func() { _ = unix.SysvShmDetach(mem) }()
	at := uintptr(unsafe.Pointer(&mem[0]))
	page := uintptr(os.Getpagesize())
	end := at + (uintptr(len(mem))+page-1)/page*page
	f, err := os.OpenFile("/proc/self/map_files/"+strconv.FormatUint(uint64(at), 16)+"-"+strconv.FormatUint(uint64(end), 16), open, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return fn(f)
}

func (o *ipcObject) remove() error {
	call := map[ipcKind]uintptr{ipcShm: unix.SYS_SHMCTL, ipcSem: unix.SYS_SEMCTL, ipcMsg: unix.SYS_MSGCTL}[o.Kind]
	cmd := [2]uintptr{ipcRmid, 0}
	if o.Kind == ipcSem {
		cmd = [2]uintptr{0, ipcRmid}
	}
	err := ipcCall(call, uintptr(o.ID), cmd[0], cmd[1], 0)
	if errors.Is(err, unix.EIDRM) || errors.Is(err, unix.EINVAL) {
		return nil // gone
	}
	return err
}

// ipcCall makes a system call. What its arguments point to stays where it is until then.
//
//go:uintptrescapes
func ipcCall(call, a, b, c, d uintptr) error {
	if _, _, errno := unix.Syscall6(call, a, b, c, d, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// ipcMaker makes objects, on a thread of its own in the IPC namespace.
type ipcMaker struct {
	r    *shmRestorer
	next map[ipcKind]*os.File // sysctls that choose the next id
}

func newIPCMaker(r *shmRestorer) (*ipcMaker, error) {
	m := &ipcMaker{r: r, next: map[ipcKind]*os.File{}}
	var err error
	if r.data, err = r.open(ipcData); err != nil {
		return nil, err
	}
	for _, kind := range []ipcKind{ipcShm, ipcSem, ipcMsg} {
		f, err := os.OpenFile("/proc/sys/kernel/"+string(kind)+"_next_id", os.O_WRONLY, 0)
		if err != nil {
			m.close()
			return nil, fmt.Errorf("choose ids (CONFIG_CHECKPOINT_RESTORE): %w", err)
		}
		m.next[kind] = f
	}
	return m, keepCapabilities()
}

func (m *ipcMaker) close() {
	m.r.data.Close()
	for _, f := range m.next {
		f.Close()
	}
}

// make makes one object, as its creator.
func (m *ipcMaker) make(o ipcObject) error {
	own := m.r.owners
	uid, e1 := own.uid.outside(o.UID)
	gid, e2 := own.gid.outside(o.GID)
	cuid, e3 := own.uid.outside(o.CUID)
	cgid, e4 := own.gid.outside(o.CGID)
	if err := errors.Join(e1, e2, e3, e4); err != nil {
		return err
	}
	if next := m.next[o.Kind]; next == nil || o.ID < 0 || o.Size < 0 {
		return damaged(errors.New("no such object"))
	} else if _, err := next.WriteAt([]byte(strconv.Itoa(int(o.ID))), 0); err != nil {
		return fmt.Errorf("choose an id: %w", err)
	}
	// Of this thread alone; the saved id leads back.
	if err := errors.Join(ipcCall(unix.SYS_SETRESGID, ^uintptr(0), uintptr(cgid), 0, 0), ipcCall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(cuid), 0, 0)); err != nil {
		return fmt.Errorf("take the creator's ids: %w", err)
	}
	id, err := o.get()
	if err = errors.Join(err, ipcCall(unix.SYS_SETRESUID, ^uintptr(0), 0, 0, 0), ipcCall(unix.SYS_SETRESGID, ^uintptr(0), 0, 0, 0)); err != nil {
		return err
	}
	if id != o.ID {
		return fmt.Errorf("it got id %d", id)
	}
	if err := m.fill(o); err != nil {
		return err
	}
	return o.own(uint32(uid), uint32(gid))
}

// get makes the object.
func (o *ipcObject) get() (int32, error) {
	const flags = ipcCreat | ipcExcl | 0o600
	key := uintptr(uint32(o.Key))
	var id uintptr
	var errno unix.Errno
	switch o.Kind {
	case ipcShm:
		id, _, errno = unix.Syscall(unix.SYS_SHMGET, key, uintptr(o.Size), flags)
	case ipcSem:
		id, _, errno = unix.Syscall(unix.SYS_SEMGET, key, uintptr(len(o.Values)), flags)
	case ipcMsg:
		id, _, errno = unix.Syscall(unix.SYS_MSGGET, key, flags, 0)
	}
	if errno != 0 {
		return 0, errno
	}
	return int32(id), nil
}

func (m *ipcMaker) fill(o ipcObject) error {
	switch o.Kind {
	case ipcShm:
		return withSegment(o.ID, false, func(f *os.File) error {
			return m.r.pour(f, o.Data, o.Size)
		})
	case ipcSem:
		if len(o.Values) == 0 {
			return nil
		}
		return ipcCall(unix.SYS_SEMCTL, uintptr(o.ID), 0, semSetAll, uintptr(unsafe.Pointer(&o.Values[0])))
	case ipcMsg:
		// The limit first: it may be more than usual.
		if err := o.own(0, 0); err != nil {
			return err
		}
		for _, msg := range o.Messages {
			buf := append(binary.NativeEndian.AppendUint64(nil, uint64(msg.Type)), msg.Text...)
			if err := ipcCall(unix.SYS_MSGSND, uintptr(o.ID), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(msg.Text)), ipcNoWait); err != nil {
				return fmt.Errorf("send a message: %w", err)
			}
		}
	}
	return nil
}

// own gives the object its owner and permissions.
func (o *ipcObject) own(uid, gid uint32) error {
	desc := make([]byte, msgDescLen)
	*(*unix.SysvIpcPerm)(unsafe.Pointer(&desc[0])) = unix.SysvIpcPerm{Uid: uid, Gid: gid, Mode: o.Mode}
	switch o.Kind {
	case ipcShm:
		return ipcCall(unix.SYS_SHMCTL, uintptr(o.ID), ipcSet, uintptr(unsafe.Pointer(&desc[0])), 0)
	case ipcSem:
		return ipcCall(unix.SYS_SEMCTL, uintptr(o.ID), 0, ipcSet, uintptr(unsafe.Pointer(&desc[0])))
	case ipcMsg:
	}
	binary.NativeEndian.PutUint64(desc[msgQBytesAt:], o.QBytes)
	return ipcCall(unix.SYS_MSGCTL, uintptr(o.ID), ipcSet, uintptr(unsafe.Pointer(&desc[0])), 0)
}
