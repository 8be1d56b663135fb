package stem

import (
	"errors"
	"os"
	"strings"
	"sync"
	"time"
	"unsafe"

	"cairn/sandbox/stem/wire"

	"golang.org/x/sys/unix"
)

const (
	watchMask = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_ONLYDIR
	// A sandbox may write as fast as it can. Above manyEvents in a window the watcher pauses
	// after each read, and the kernel merges or drops what comes in between.
	window     = 10 * time.Millisecond
	manyEvents = 256
	breather   = time.Millisecond
)

// Watcher wakes those who wait for a change in a directory. One serves a whole program:
// the kernel allows a user 128 inotify instances by default.
type Watcher struct {
	file *os.File
	done chan struct{}

	mu     sync.Mutex
	subs   map[int32]map[*subscription]struct{} // by watch descriptor
	closed bool
}

// subscription is one party's interest in one directory.
type subscription struct {
	w  *Watcher
	wd int32 // -1: the kernel had no watch left
	// C has a notice when something may have changed.
	C chan struct{}
}

// NewWatcher starts a watcher; Close ends it.
func NewWatcher() (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, &Error{Code: Limit, Op: "watch", Err: os.NewSyscallError("inotify_init1", err)}
	}
	w := &Watcher{
		file: os.NewFile(uintptr(fd), "inotify"),
		done: make(chan struct{}),
		subs: map[int32]map[*subscription]struct{}{},
	}
	go w.run()
	return w, nil
}

// Close ends the watcher. Those who wait fall back to looking now and then.
func (w *Watcher) Close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	err := w.file.Close()
	<-w.done
	return err
}

// subscribe watches the directory open at fd. Without a watch left in the kernel the
// subscription stays silent, and its owner has to look now and then.
func (w *Watcher) subscribe(fd int) *subscription {
	s := &subscription{w: w, wd: -1, C: make(chan struct{}, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return s
	}
	raw, err := w.file.SyscallConn()
	if err != nil {
		return s
	}
	cerr := raw.Control(func(in uintptr) {
		var wd int
		// The same directory has the same watch descriptor.
		if wd, err = unix.InotifyAddWatch(int(in), procFD(fd), watchMask); err == nil {
			s.wd = int32(wd)
		}
	})
	if cerr != nil || err != nil {
		return s
	}
	if w.subs[s.wd] == nil {
		w.subs[s.wd] = map[*subscription]struct{}{}
	}
	w.subs[s.wd][s] = struct{}{}
	return s
}

// close ends the subscription, and the watch with its last one.
func (s *subscription) close() {
	w := s.w
	w.mu.Lock()
	defer w.mu.Unlock()
	set, ok := w.subs[s.wd]
	if !ok {
		return
	}
	delete(set, s)
	if len(set) > 0 {
		return
	}
	delete(w.subs, s.wd)
	if raw, err := w.file.SyscallConn(); err == nil {
		// It fails when the directory is gone, and the watch with it.
		_ = raw.Control(func(in uintptr) { _, _ = unix.InotifyRmWatch(int(in), uint32(s.wd)) })
	}
}

func (s *subscription) notify() {
	select {
	case s.C <- struct{}{}:
	default:
	}
}

func (w *Watcher) run() {
	defer close(w.done)
	buf := make([]byte, 64<<10)
	var opened time.Time
	events := 0
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			if errors.Is(err, os.ErrClosed) {
				return
			}
			n = 0
		}
		if now := time.Now(); now.Sub(opened) > window {
			opened, events = now, 0
		}
		events += w.dispatch(buf[:n])
		if events > manyEvents || err != nil {
			time.Sleep(breather) //nolint:forbidigo // the pause is the point: a flood of events is not to take the CPU
		}
	}
}

// dispatch wakes whom the events concern and returns their number.
func (w *Watcher) dispatch(buf []byte) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	count := 0
	for len(buf) >= unix.SizeofInotifyEvent {
		ev := (*unix.InotifyEvent)(unsafe.Pointer(&buf[0]))
		size := min(len(buf), unix.SizeofInotifyEvent+int(ev.Len))
		name, _, _ := strings.Cut(string(buf[unix.SizeofInotifyEvent:size]), "\x00")
		buf = buf[size:]
		count++
		if ev.Mask&unix.IN_Q_OVERFLOW != 0 {
			for _, set := range w.subs {
				for s := range set {
					s.notify()
				}
			}
			continue
		}
		if telling(name) {
			for s := range w.subs[ev.Wd] {
				s.notify()
			}
		}
		if ev.Mask&unix.IN_IGNORED != 0 {
			// The directory is gone; its number may come back for another.
			delete(w.subs, ev.Wd)
		}
	}
	return count
}

// telling reports whether a change of that file in a process's directory may be what
// somebody waits for. The name is empty when it is the directory's own change.
func telling(name string) bool {
	return name != wire.FileStatusNew && name != wire.FilePIDNew && name != wire.FilePID
}
