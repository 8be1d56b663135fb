package overlay

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Reason says why a process keeps a root from being replaced under it.
type Reason string

// The reasons.
const (
	BlockedByCwd       Reason = "cwd"            // stands in a directory other than "/"
	BlockedByRoot      Reason = "root"           // has another root directory
	BlockedByWriter    Reason = "open_writable"  // has a file open for writing
	BlockedByReader    Reason = "open_upper"     // reads a file of the upper: it would miss later changes
	BlockedByDir       Reason = "open_directory" // has a directory open
	BlockedByPath      Reason = "open_path"      // has an O_PATH descriptor
	BlockedBySpecial   Reason = "open_special"   // has a fifo or device of the overlay open
	BlockedByMapping   Reason = "shared_mapping" // has a file mapped shared
	BlockedByLock      Reason = "file_lock"
	BlockedByWatch     Reason = "watch" // inotify or fanotify
	BlockedBySocket    Reason = "unix_socket"
	BlockedByPassedFD  Reason = "passed_descriptor" // descriptors in flight in a Unix socket
	BlockedByNamespace Reason = "namespace"         // in a namespace of its own
	BlockedByIOUring   Reason = "io_uring"
)

// Blocker is a process that keeps the root from being replaced, and why.
type Blocker struct {
	PID    int // as the host numbers it
	Comm   string
	Reason Reason
	Path   string // as /proc shows it, when it is about a file
}

// Blockers looks for what would make replacing the root under living
// processes lose or corrupt something. pids are all processes of the
// container, its PID 1 included, as the host numbers them; all of them must
// be frozen. A process that is gone is no blocker. The first reason found is
// given for each process.
//
// A file that was deleted and is open for reading blocks only if other links
// to it are left, through which it could still be changed.
func (p *Pool) Blockers(pids []int, root AttachedRoot) ([]Blocker, error) {
	c, err := p.newChecker(root)
	if err != nil {
		return nil, err
	}
	defer c.close()
	var all []Blocker
	for _, pid := range pids {
		b, err := c.process(pid)
		if errors.Is(err, ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if b == nil {
			continue
		}
		b.PID = pid
		if comm, err := p.readProc(pid, "comm"); err == nil {
			b.Comm = strings.TrimSuffix(string(comm), "\n")
		}
		all = append(all, *b)
	}
	return all, nil
}

// checker looks at processes of one container.
type checker struct {
	pool    *Pool
	root    AttachedRoot
	rootIno uint64
	poolDev uint64
	upper   *os.File
	ns      map[string]string            // of PID 1
	sockets map[string]map[string]string // network namespace: inode: bound path
}

func (p *Pool) newChecker(root AttachedRoot) (*checker, error) {
	if root.Upper == "" {
		return nil, errors.New("overlay: the process has no attached root")
	}
	c := &checker{pool: p, root: root, ns: map[string]string{}, sockets: map[string]map[string]string{}}
	for _, ns := range namespaces() {
		l, err := p.procLink(root.PID, "ns/"+ns)
		if err != nil {
			return nil, err
		}
		c.ns[ns] = l
	}
	f, err := p.openProc(root.PID, "root", unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st, pst unix.Stat_t
	if err := errors.Join(unix.Fstat(int(f.Fd()), &st), unix.Fstat(int(p.root.Fd()), &pst)); err != nil {
		return nil, err
	}
	c.rootIno, c.poolDev = st.Ino, pst.Dev
	if c.upper, err = p.openLayer(root.Upper); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *checker) close() { c.upper.Close() }

func namespaces() []string { return []string{"mnt", "user", "pid"} }

func (p *Pool) procLink(pid int, name string) (string, error) {
	l, err := readlinkAt(int(p.proc.Fd()), strconv.Itoa(pid)+"/"+name)
	if err != nil {
		return "", procError(pid, err)
	}
	return l, nil
}

func (c *checker) process(pid int) (*Blocker, error) {
	for _, ns := range namespaces() {
		l, err := c.pool.procLink(pid, "ns/"+ns)
		if err != nil {
			return nil, err
		}
		if l != c.ns[ns] {
			return &Blocker{Reason: BlockedByNamespace, Path: l}, nil
		}
	}
	tids, err := c.threads(pid)
	if err != nil {
		return nil, err
	}
	for i, tid := range tids {
		// Threads nearly always share these; the first may have ended.
		if i == 0 || !same(pid, tid, kcmpFS) {
			if b, err := c.places(pid, tid); b != nil || err != nil {
				return b, err
			}
		}
		if i == 0 || !same(pid, tid, kcmpFiles) {
			if b, err := c.descriptors(pid, tid); b != nil || err != nil {
				return b, err
			}
		}
	}
	return c.mappings(pid)
}

func (c *checker) threads(pid int) ([]int, error) {
	d, err := c.pool.openProc(pid, "task", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	tids, err := readNumbers(d)
	if err != nil {
		return nil, procError(pid, err)
	}
	if i := slices.Index(tids, pid); i > 0 {
		tids[0], tids[i] = tids[i], tids[0]
	}
	return tids, nil
}

func readNumbers(d *os.File) ([]int, error) {
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	ns := make([]int, 0, len(names))
	for _, name := range names {
		n, err := strconv.Atoi(name)
		if err != nil {
			return nil, fmt.Errorf("unexpected name %q: %w", name, err)
		}
		ns = append(ns, n)
	}
	slices.Sort(ns)
	return ns, nil
}

const (
	kcmpFiles = 2
	kcmpFS    = 3
)

// same says whether two threads are known to share their descriptors, or
// their root and working directory.
func same(a, b, what int) bool {
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), uintptr(what), 0, 0, 0)
	return errno == 0 && r == 0
}

// places checks root and working directory of a thread.
func (c *checker) places(pid, tid int) (*Blocker, error) {
	for _, what := range []struct {
		name   string
		reason Reason
	}{{"root", BlockedByRoot}, {"cwd", BlockedByCwd}} {
		name := fmt.Sprintf("task/%d/%s", tid, what.name)
		f, err := c.pool.openProc(pid, name, unix.O_PATH)
		if errors.Is(err, ErrGone) {
			continue // a thread that ended
		}
		if err != nil {
			return nil, err
		}
		on, atRoot, err := c.where(f)
		f.Close()
		if err != nil {
			return nil, err
		}
		if on && !atRoot || what.name == "root" && !atRoot {
			path, _ := c.pool.procLink(pid, name)
			return &Blocker{Reason: what.reason, Path: path}, nil
		}
	}
	return nil, nil
}

// where says whether an open file is on the overlay, and whether it is its
// root, through the mount that is at "/".
func (c *checker) where(f *os.File) (on, atRoot bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return false, false, err
	}
	id, err := mountID(int(f.Fd()))
	if err != nil {
		return false, false, err
	}
	on = id == c.root.MountID || st.Dev == c.root.Dev
	return on, id == c.root.MountID && st.Ino == c.rootIno && isDir(&st), nil
}

// mappings checks a process's memory for files of the overlay that are
// mapped shared. Kernels differ in whether they show the overlay's device or
// that of the layer, so either counts.
func (c *checker) mappings(pid int) (*Blocker, error) {
	b, err := c.pool.readProc(pid, "maps")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		// 7f0e-7f0f rw-s 00000000 00:2a 1234   /path
		f := strings.Fields(line)
		if len(f) < 5 || len(f[1]) != 4 {
			return nil, fmt.Errorf("overlay: maps line %q", line)
		}
		if f[1][3] != 's' {
			continue
		}
		major, minor, _ := strings.Cut(f[3], ":")
		ma, err1 := strconv.ParseUint(major, 16, 32)
		mi, err2 := strconv.ParseUint(minor, 16, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("overlay: maps line %q: %w", line, err)
		}
		if dev := unix.Mkdev(uint32(ma), uint32(mi)); dev == c.root.Dev || dev == c.poolDev {
			path := ""
			if len(f) > 5 {
				path = f[5]
			}
			return &Blocker{Reason: BlockedByMapping, Path: path}, nil
		}
	}
	return nil, nil
}

// socketPaths reads which Unix sockets of a process's network namespace are
// bound to which path.
func (c *checker) socketPaths(pid int) (map[string]string, error) {
	ns, err := c.pool.procLink(pid, "ns/net")
	if err != nil {
		return nil, err
	}
	if m, ok := c.sockets[ns]; ok {
		return m, nil
	}
	f, err := c.pool.openProc(pid, "net/unix", unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, procError(pid, err)
	}
	m := parseSocketPaths(b)
	c.sockets[ns] = m
	return m, nil
}

// parseSocketPaths reads /proc/net/unix. Names stand there as they are, so
// that one with a newline can look like several lines: a socket of which that
// leaves a doubt gets an empty path.
func parseSocketPaths(b []byte) map[string]string {
	m := map[string]string{}
	odd := false
	first := true
	for line := range strings.Lines(string(b)) {
		if first {
			first = false
			continue
		}
		// Num RefCount Protocol Flags Type St Inode Path
		rest := strings.TrimSuffix(line, "\n")
		var f [7]string
		ok := true
		for i := range f {
			rest = strings.TrimLeft(rest, " ")
			f[i], rest, _ = strings.Cut(rest, " ")
			ok = ok && f[i] != ""
		}
		if !ok || !strings.HasSuffix(f[0], ":") {
			odd = true
			continue
		}
		inode, path := f[6], rest
		if _, twice := m[inode]; twice {
			odd = true
		}
		if path != "" {
			m[inode] = path
		}
	}
	if odd {
		for inode := range m {
			m[inode] = ""
		}
	}
	return m
}
