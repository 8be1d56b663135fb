package cgroup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrGone means that the group does not exist any more.
var ErrGone = errors.New("the cgroup is gone")

// Group is the control group of one container. Its methods may be called from
// several goroutines.
type Group struct {
	h    *Hierarchy
	path string
	main string // directory of the freezer (V1), or of the group (V2)

	mu    sync.Mutex // serialises Freeze, Thaw, Kill and Close
	state *os.File   // freezer.state (V1) or cgroup.freeze (V2); nil once closed
	event *os.File   // where "frozen" is read: the same file (V1) or cgroup.events (V2)
}

// Open opens the group at path, e.g. "/cairn/name". The error is ErrGone when
// there is none.
func (h *Hierarchy) Open(path string) (*Group, error) {
	g := &Group{h: h, path: path}
	state, event := "freezer.state", "freezer.state"
	if h.version == V2 {
		g.main = filepath.Join(h.unified, path)
		state, event = "cgroup.freeze", "cgroup.events"
	} else {
		g.main = filepath.Join(h.v1["freezer"], path)
	}
	var err error
	if g.state, err = os.OpenFile(filepath.Join(g.main, state), os.O_RDWR, 0); err != nil {
		return nil, gone(err)
	}
	g.event = g.state
	if event != state {
		if g.event, err = os.Open(filepath.Join(g.main, event)); err != nil {
			g.state.Close()
			return nil, gone(err)
		}
	}
	return g, nil
}

// Path is the group's path in every tree.
func (g *Group) Path() string { return g.path }

// Close gives up the descriptors. The group itself stays.
func (g *Group) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state == nil {
		return nil
	}
	err := g.state.Close()
	if g.event != g.state {
		err = errors.Join(err, g.event.Close())
	}
	g.state, g.event = nil, nil
	return err
}

// Processes lists the processes in the group and in groups below it. Dead ones
// that were not reaped are left out.
func (g *Group) Processes() ([]int, error) {
	// Version 1 caches the list for a second in an open file: open it anew.
	pids, err := readProcs(nil, g.main)
	if err != nil {
		return nil, gone(err)
	}
	return pids, nil
}

func readProcs(pids []int, dir string) ([]int, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return pids, err
	}
	for _, f := range strings.Fields(string(b)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return pids, fmt.Errorf("cgroup.procs of %s: %w", dir, err)
		}
		if pid > 0 { // 0: in another pid namespace than ours
			pids = append(pids, pid)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return pids, err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if pids, err = readProcs(pids, filepath.Join(dir, e.Name())); err != nil && !isGone(err) {
			return pids, err
		}
	}
	return pids, nil
}

// dir is the group's directory in the tree of a controller; "" when the host
// has no such controller.
func (g *Group) dir(controller string) string {
	if g.h.version == V2 {
		return g.main
	}
	if m, ok := g.h.v1[controller]; ok {
		return filepath.Join(m, g.path)
	}
	return ""
}

// readAt reads a small control file from its beginning into buf.
func readAt(f *os.File, buf []byte) ([]byte, error) {
	n, err := f.ReadAt(buf, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return buf[:n], nil
}

func writeFile(dir, name, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func isGone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// gone turns the errors of a removed group into ErrGone.
func gone(err error) error {
	if isGone(err) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}
