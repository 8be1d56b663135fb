package helper

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"cairn/criu/internal/frame"

	"golang.org/x/sys/unix"
)

// refusal is a failure that was found here and not by CRIU.
type refusal struct{ frame.Failure }

func (r *refusal) Error() string { return r.Message }

// tree looks at the container's processes through its own procfs, whose pids are those
// inside.
type tree struct{ proc *os.File }

func openTree(pid int) (*tree, error) {
	root := "/proc/" + strconv.Itoa(pid) + "/root"
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the container's root: %w", err)
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, "proc", &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	})
	if err != nil {
		return nil, fmt.Errorf("open the container's /proc: %w", err)
	}
	t := &tree{os.NewFile(uintptr(fd), "proc")}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.PROC_SUPER_MAGIC {
		t.Close()
		return nil, errors.New("the container's /proc is none")
	}
	var inside, outside unix.Stat_t
	err = errors.Join(unix.Fstatat(fd, "1/ns/pid", &inside, 0), unix.Stat("/proc/"+strconv.Itoa(pid)+"/ns/pid", &outside))
	if err != nil || inside.Ino != outside.Ino {
		t.Close()
		return nil, errors.New("the container's /proc is of another one")
	}
	return t, nil
}

func (t *tree) Close() error {
	if t.proc == nil {
		return nil
	}
	return t.proc.Close()
}

// read reads a small file below /proc.
func (t *tree) read(path string) (string, error) {
	fd, err := unix.Openat(int(t.proc.Fd()), path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	buf := make([]byte, 8192)
	n, err := unix.Read(fd, buf)
	return string(buf[:max(n, 0)]), err
}

func (t *tree) pids(dir string) ([]int, error) {
	fd, err := unix.Openat(int(t.proc.Fd()), dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// comm is the name of a process, "" when it is not there.
func (t *tree) comm(pid int) string {
	if t == nil || t.proc == nil || pid <= 0 {
		return ""
	}
	s, err := t.read(strconv.Itoa(pid) + "/comm")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(s)
}

// stat is the parent and the state of a process.
func (t *tree) stat(pid int) (parent int, state byte, err error) {
	s, err := t.read(strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 2 {
		return 0, 0, errors.New("malformed stat file")
	}
	parent, err = strconv.Atoi(f[1])
	return parent, f[0][0], err
}

// field returns the value of a line of a status file.
func field(status, name string) string {
	i := strings.Index(status, "\n"+name+":")
	if i < 0 {
		return ""
	}
	rest := status[i+len(name)+2:]
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

// filters is how many system call filters a process has; -1 when that is not known.
func (t *tree) filters(pid int) int {
	s, err := t.read(strconv.Itoa(pid) + "/status")
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(field(s, "Seccomp_filters"))
	if err != nil {
		return -1
	}
	return n
}

// check looks for what CRIU does not: a process outside of the tree, which would not come
// back, one with system call filters of its own, and one that would lose a lock. Everything stands still but PID 1.
func (t *tree) check(root, filters int) error {
	pids, err := t.pids(".")
	if err != nil {
		return err
	}
	parents := map[int]int{}
	zombies := map[int]bool{}
	for _, pid := range pids {
		parent, state, err := t.stat(pid)
		if err == nil {
			parents[pid] = parent
			zombies[pid] = state == 'Z'
		}
	}
	for pid := range parents {
		at := pid
		for at > 1 && at != root {
			at = parents[at]
		}
		if at == 0 { // entered from outside
			continue
		}
		if at == 1 {
			if pid == 1 || zombies[pid] {
				continue
			}
			return &refusal{frame.Failure{
				Code: "unsupported", PID: pid, Comm: t.comm(pid), Resource: "process",
				Message: "it is not a child of the present stem, which was started again after it; end it, or start it again",
			}}
		}
		if err := t.checkFilters(pid, filters, zombies[pid]); err != nil {
			return err
		}
	}
	return t.checkLocks()
}

func (t *tree) checkFilters(pid, want int, zombie bool) error {
	if zombie {
		return nil
	}
	tids, err := t.pids(strconv.Itoa(pid) + "/task")
	if err != nil {
		return nil //nolint:nilerr // it has ended
	}
	for _, tid := range tids {
		s, err := t.read(strconv.Itoa(pid) + "/task/" + strconv.Itoa(tid) + "/status")
		if err != nil {
			continue
		}
		if n := field(s, "Seccomp_filters"); n != strconv.Itoa(want) {
			return &refusal{frame.Failure{
				Code: "unsupported", PID: pid, Comm: t.comm(pid), Resource: "seccomp filter",
				Message: "it has put a system call filter of its own in place, which can't be read from inside the sandbox; run it without (browsers: --no-sandbox)",
			}}
		}
	}
	return nil
}

// checkRestored makes sure that nobody in the restored tree has more rights than PID 1 has.
func (t *tree) checkRestored(filters int) error {
	one, err := t.read("1/status")
	if err != nil {
		return err
	}
	ns, err := t.link("1/ns/user")
	if err != nil {
		return err
	}
	pids, err := t.pids(".")
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if pid == 1 {
			continue
		}
		parent, state, err := t.stat(pid)
		if err != nil || parent == 0 || state == 'Z' {
			continue // CRIU itself, or one that has ended
		}
		s, err := t.read(strconv.Itoa(pid) + "/status")
		if err != nil {
			continue
		}
		own, err := t.link(strconv.Itoa(pid) + "/ns/user")
		if err != nil {
			continue
		}
		bad := ""
		switch {
		case own != ns:
			bad = "user namespace"
		case field(one, "NoNewPrivs") == "1" && field(s, "NoNewPrivs") != "1":
			bad = "no_new_privs"
		case !within(field(s, "CapBnd"), field(one, "CapBnd")), !within(field(s, "CapPrm"), field(one, "CapBnd")),
			!within(field(s, "CapInh"), field(one, "CapBnd")):
			bad = "capabilities"
		}
		if bad == "" && t.checkFilters(pid, filters, false) != nil {
			bad = "seccomp filter"
		}
		if bad != "" {
			return &refusal{frame.Failure{
				Code: "rights", PID: pid, Comm: t.comm(pid), Resource: bad,
				Message: "it was restored with other rights than the sandbox has, and ended at once",
			}}
		}
	}
	return nil
}

func (t *tree) link(path string) (string, error) {
	buf := make([]byte, 64)
	n, err := unix.Readlinkat(int(t.proc.Fd()), path, buf)
	if err != nil {
		return "", err
	}
	return string(bytes.Clone(buf[:n])), nil
}

// within says whether the capabilities a are among b, both as status files have them.
func within(a, b string) bool {
	x, e1 := strconv.ParseUint(a, 16, 64)
	y, e2 := strconv.ParseUint(b, 16, 64)
	return e1 == nil && e2 == nil && x&^y == 0
}

// likePID1 gives this process the resource limits of PID 1, as far as it may: restored
// processes can't be given more than CRIU has.
func likePID1(pid int) {
	for r := range 16 {
		var l unix.Rlimit
		if unix.Prlimit(pid, r, nil, &l) != nil {
			continue
		}
		var own unix.Rlimit
		if unix.Prlimit(0, r, nil, &own) == nil && own.Max < l.Max {
			_ = unix.Prlimit(0, r, &l, nil)
		}
	}
}
