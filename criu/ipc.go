package criu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// System V shared memory, semaphores and message queues belong to the IPC namespace, which
// stays and is not dumped. So these objects are carried beside the images, like the content
// of /dev/shm, and made again with the ids they had. Segments that processes have attached
// are in the images too: these processes go on sharing that memory among each other, while
// who attaches the segment anew gets the content of the checkpoint.
const (
	ipcIndex = "ipc.json"
	ipcData  = "ipc.img"

	mostIPC      = 4096
	mostMessages = 1 << 16
)

// ipcObject is a line of the index.
type ipcObject struct {
	Kind     ipcKind
	ID, Key  int32
	Mode     uint32 // permissions
	UID, GID uint32 // of the owner, as seen inside
	CUID     uint32 // of the creator
	CGID     uint32
	Removed  bool         `json:",omitempty"` // gone once nobody has it attached any more
	Size     int64        `json:",omitempty"` // of a segment, in bytes
	Data     []extent     `json:",omitempty"` // what of it is no hole, as it follows in ipc.img
	Values   []uint16     `json:",omitempty"` // of semaphores
	QBytes   uint64       `json:",omitempty"` // limit of a queue
	Messages []ipcMessage `json:",omitempty"`
}

type ipcMessage struct {
	Type int64
	Text []byte
}

type ipcKind string

const (
	ipcShm ipcKind = "shm"
	ipcSem ipcKind = "sem"
	ipcMsg ipcKind = "msg"
)

// Bits of a segment's mode beside the permissions.
const shmDest = 0o1000

// inIPC runs fn on a thread that is in the container's IPC namespace.
func inIPC(pid int, fn func() error) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/ipc", pid))
	if err != nil {
		return &Error{Code: CodeGone, PID: 1, Message: "the sandbox has ended", Err: err}
	}
	defer ns.Close()
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine.
		runtime.LockOSThread()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWIPC); err != nil {
			done <- fmt.Errorf("join the IPC namespace: %w", err)
			return
		}
		done <- fn()
	}()
	return <-done
}

// listIPC reads the objects of a kind, as the host sees them.
func listIPC(kind ipcKind) ([]ipcObject, error) {
	f, err := os.Open("/proc/sysvipc/" + string(kind))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var list []ipcObject
	sc := bufio.NewScanner(f)
	sc.Scan() // the heading
	for sc.Scan() {
		text := strings.Fields(sc.Text())
		col := func(i int) int64 {
			if i >= len(text) {
				return 0
			}
			n, _ := strconv.ParseInt(text[i], 10, 64)
			return n
		}
		if len(text) < 8 {
			return nil, errors.New("malformed table of System V objects")
		}
		if len(list) == mostIPC {
			return nil, &Error{Code: CodeUnsupported, Resource: "System V IPC", Message: fmt.Sprintf("there are more than %d objects", mostIPC)}
		}
		mode, _ := strconv.ParseUint(text[2], 8, 32)
		o := ipcObject{Kind: kind, Key: int32(col(0)), ID: int32(col(1)), Mode: uint32(mode & 0o777), Removed: mode&shmDest != 0 && kind == ipcShm}
		owner := 5
		switch kind {
		case ipcShm:
			o.Size = col(3)
			owner = 7
		case ipcSem:
			o.Values = make([]uint16, col(3))
			owner = 4
		case ipcMsg:
			owner = 7
		}
		o.UID, o.GID, o.CUID, o.CGID = uint32(col(owner)), uint32(col(owner+1)), uint32(col(owner+2)), uint32(col(owner+3))
		list = append(list, o)
	}
	return list, sc.Err()
}

func listAllIPC() ([]ipcObject, error) {
	var all []ipcObject
	for _, kind := range []ipcKind{ipcShm, ipcSem, ipcMsg} {
		list, err := listIPC(kind)
		if err != nil {
			return nil, fmt.Errorf("list System V objects: %w", err)
		}
		all = append(all, list...)
	}
	return all, nil
}

// SaveIPC writes the System V shared memory, semaphores and message queues of the container
// into the directory of images; nothing when there are none. To be called while the tree
// stands still, in DumpOptions.Stopped. Codes: CodeUnsupported, CodeNoSpace, CodeGone.
func SaveIPC(ctx context.Context, t Target, images *os.File) error {
	own, err := ownersOf(t.PID)
	if err != nil {
		return err
	}
	err = inIPC(t.PID, func() error {
		all, err := listAllIPC()
		if err != nil || len(all) == 0 {
			return err
		}
		return saveIPC(ctx, all, own, images)
	})
	if err != nil {
		for _, name := range []string{ipcIndex, ipcData} {
			_ = unix.Unlinkat(int(images.Fd()), name, 0)
		}
	}
	return ipcFailure("save", err)
}

func saveIPC(ctx context.Context, all []ipcObject, own owners, images *os.File) (err error) {
	s := &shmSaver{ctx: ctx, owners: own, images: images}
	if err := s.begin(ipcIndex, ipcData); err != nil {
		return errors.Join(err, s.close())
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for _, o := range all {
		if err := o.read(s); err != nil {
			return fmt.Errorf("%s %d: %w", o.Kind, o.ID, err)
		}
		if err := o.shift(own); err != nil {
			return err
		}
		if err := s.line(o); err != nil {
			return err
		}
	}
	return s.index.Flush()
}

// shift makes the ids those inside.
func (o *ipcObject) shift(own owners) (err error) {
	for _, x := range []struct {
		id *uint32
		r  idRange
	}{{&o.UID, own.uid}, {&o.GID, own.gid}, {&o.CUID, own.uid}, {&o.CGID, own.gid}} {
		if *x.id, err = x.r.inside(*x.id); err != nil {
			return err
		}
	}
	return nil
}

// RestoreIPC removes all System V objects of the container and makes those that SaveIPC
// saved. Nothing may use them: to be called between Clear and Restore. The images must be
// what Verify approves of. Codes: CodeImages, CodeNoSpace, CodeGone.
func RestoreIPC(ctx context.Context, t Target, images *os.File) error {
	own, err := ownersOf(t.PID)
	if err != nil {
		return err
	}
	err = inIPC(t.PID, func() error {
		all, err := listAllIPC()
		if err != nil {
			return err
		}
		for _, o := range all {
			if err := o.remove(); err != nil {
				return err
			}
		}
		return restoreIPC(ctx, own, images)
	})
	return ipcFailure("restore", err)
}

func restoreIPC(ctx context.Context, own owners, images *os.File) error {
	r := &shmRestorer{ctx: ctx, owners: own, images: images}
	var m *ipcMaker
	err := eachIPC(r, func(o ipcObject) error {
		if o.Removed {
			return nil // only who had it attached has it
		}
		if m == nil {
			var err error
			if m, err = newIPCMaker(r); err != nil {
				return err
			}
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := m.make(o); err != nil {
			return fmt.Errorf("%s %d: %w", o.Kind, o.ID, err)
		}
		return nil
	})
	if m != nil {
		m.close()
	}
	return err
}

// eachIPC calls fn for each object of the images.
func eachIPC(r *shmRestorer, fn func(ipcObject) error) error {
	index, err := r.open(ipcIndex)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer index.Close()
	bad := func(err error) error {
		return &Error{Code: CodeImages, Resource: "image " + ipcIndex, Message: "it is damaged", Err: err}
	}
	d := json.NewDecoder(index)
	for n := 0; ; n++ {
		var o ipcObject
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && n >= 3*mostIPC {
			err = errors.New("too many objects")
		}
		if err != nil {
			return bad(err)
		}
		if err := fn(o); err != nil {
			return err
		}
	}
}

func ipcFailure(what string, err error) error {
	var own *Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.ENOMEM):
		return &Error{Code: CodeNoSpace, Resource: "System V IPC", Message: "there is no room to " + what + " it", Err: err}
	}
	return fmt.Errorf("%s System V IPC: %w", what, err)
}
