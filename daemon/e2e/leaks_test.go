package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// instance is how the daemon names this state directory in control groups.
func (h *host) instance() string {
	sum := sha256.Sum256([]byte(h.root))
	return hex.EncodeToString(sum[:4])
}

func (h *host) poolDir() string {
	if h.o.pool != "" {
		return h.o.pool
	}
	return filepath.Join(h.root, "pool")
}

// finish deletes everything through the API, stops the daemon, and fails for
// whatever is left.
func (h *host) finish() {
	h.t.Helper()
	if h.cmd == nil {
		return
	}
	if h.t.Failed() {
		h.t.Logf("the daemon says: %s", h.log.tail())
	}
	// The last daemon keeps no container warm, and so removes those that are.
	h.o.warm, h.o.failpoints = 0, ""
	if !h.dead() {
		h.stop()
	}
	if err := h.tryStart(); err != nil {
		h.t.Errorf("the last daemon does not start: %v", err)
		h.sweepUp()
		return
	}
	h.deleteAll()
	h.settle("only the image's layers are in the pool", func() bool {
		left, err := h.layers()
		return err == nil && slices.Equal(left, slices.Sorted(slices.Values(h.image.Layers)))
	})
	h.settle("no container has a slot", func() bool { return len(h.names("pool", "s")) == 0 })
	if h.t.Failed() {
		left, _ := h.layers()
		h.t.Logf("layers %v, image %v, slots %v; the daemon says: %s", left, h.image.Layers, h.names("pool", "s"), h.log.tail())
	}
	h.stop()
	for _, what := range h.leaks() {
		h.t.Errorf("left behind: %s", what)
	}
	h.sweepUp()
}

// settle waits as eventually does, but only marks the test as failed.
func (h *host) settle(what string, cond func() bool) {
	h.t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			h.t.Errorf("it did not come about that %s", what)
			return
		}
		<-tick.C
	}
}

// sweepUp ends what a failed test has left, so that the host is as before.
func (h *host) sweepUp() {
	if !h.dead() {
		h.kill()
	}
	for range 3 {
		for _, p := range h.processes() {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
}

func (h *host) deleteAll() {
	h.t.Helper()
	list, err := h.sandboxes()
	for _, sb := range list {
		err = errors.Join(err, h.remove(sb.Id))
	}
	cps, e := h.checkpoints()
	err = errors.Join(err, e)
	for _, cp := range cps {
		err = errors.Join(err, h.deleteCheckpoint(cp.Id))
	}
	if err != nil {
		h.t.Errorf("delete everything: %v", err)
	}
}

func (h *host) layers() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(h.poolDir(), "l"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names, err
}

// names lists a directory of the state, or of the pool.
func (h *host) names(elem ...string) []string {
	dir := filepath.Join(append([]string{h.root}, elem...)...)
	if len(elem) > 0 && elem[0] == "pool" {
		dir = filepath.Join(append([]string{h.poolDir()}, elem[1:]...)...)
	}
	entries, _ := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// leaks says what a stopped daemon without sandboxes has left on the host.
func (h *host) leaks() (found []string) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		found = append(found, err.Error())
	}
	for line := range strings.SplitSeq(string(mounts), "\n") {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], h.root+"/") && f[4] != h.poolDir() {
			found = append(found, "mount "+line)
		}
	}
	for _, p := range h.processes() {
		found = append(found, p.String())
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*/cairn/" + h.instance() + "/*")
	unified, e := filepath.Glob("/sys/fs/cgroup/cairn/" + h.instance() + "/*")
	if err = errors.Join(err, e); err != nil {
		found = append(found, err.Error())
	}
	for _, g := range append(groups, unified...) {
		if st, err := os.Stat(g); err == nil && st.IsDir() {
			found = append(found, "control group "+g)
		}
	}
	for _, dir := range [][]string{{"pool", "s"}, {"pool", "tmp"}, {"spool"}, {"run", "runc", "cairn"}} {
		for _, n := range h.names(dir...) {
			found = append(found, filepath.Join(append(dir, n)...))
		}
	}
	if bridge := "cairn-" + h.instance(); statOf("/sys/class/net/"+bridge) == nil {
		found = append(found, "bridge "+bridge)
	}
	for _, dir := range []string{"/run/netns", "/var/run/netns"} {
		_ = filepath.WalkDir(dir, func(p string, _ fs.DirEntry, _ error) error {
			if strings.Contains(p, h.instance()) {
				found = append(found, "network namespace "+p)
			}
			return nil
		})
	}
	return found
}

func statOf(path string) error {
	_, err := os.Stat(path)
	return err
}

type process struct {
	pid  int
	args string
}

func (p process) String() string { return fmt.Sprintf("process %d: %s", p.pid, p.args) }

// processes are those that belong to this state directory: by their arguments,
// or by their control group.
func (h *host) processes() (list []process) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		args, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		group, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup"))
		if bytes.Contains(args, []byte(h.root+"/")) || bytes.Contains(group, []byte("/cairn/"+h.instance()+"/")) {
			list = append(list, process{pid, string(bytes.ReplaceAll(bytes.TrimSuffix(args, []byte{0}), []byte{0}, []byte{' '}))})
		}
	}
	return list
}
