package helper

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"strconv"

	"cairn/criu/internal/frame"

	"golang.org/x/sys/unix"
)

// CRIU opens mapped files by the links in /proc/PID/map_files, which only the host's root
// may follow. Inside it makes do with their paths, and can't have those that were deleted;
// of a memfd it makes memory without a name, which nobody shares who has it open. So it is
// given these files by the helper, if there are any: every other openat costs some ten
// microseconds more then.

// deletedMapping matches, in a line of /proc/PID/maps, a file without a path. Memory
// without a name and System V segments look like it, and are none.
var deletedMapping = regexp.MustCompile(`^\S+ \S+ \S+ \S+ \d+ +(.*) \(deleted\)$`)

// lostMapping matches what CRIU says of a mapped file that it can't open.
var lostMapping = regexp.MustCompile(`Can't open (?P<pid>\d+)'s mapfile link|Failed to resolve mapping`)

func isFile(name []byte) bool {
	return !bytes.Equal(name, []byte("/dev/zero")) && !bytes.HasPrefix(name, []byte("/SYSV"))
}

// deletedMapped says whether a process of the container has a deleted file mapped. It takes
// some fifty microseconds for each process.
func (t *tree) deletedMapped() (bool, error) {
	pids, err := t.pids(".")
	if err != nil {
		return false, err
	}
	buf := make([]byte, 1<<16)
	for _, pid := range pids {
		if !t.mapsDeleted(pid, buf) {
			continue
		}
		// Not CRIU, which was put there from outside.
		if parent, _, err := t.stat(pid); err == nil && (parent != 0 || pid == 1) {
			return true, nil
		}
	}
	return false, nil
}

// mapsDeleted looks at one process, with room for at least two lines.
func (t *tree) mapsDeleted(pid int, buf []byte) bool {
	fd, err := unix.Openat(int(t.proc.Fd()), strconv.Itoa(pid)+"/maps", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false // it has ended
	}
	defer unix.Close(fd)
	have := 0
	for {
		n, err := unix.Read(fd, buf[have:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return false
		}
		have += n
		whole := bytes.LastIndexByte(buf[:have], '\n') + 1
		if hasDeleted(buf[:whole]) {
			return true
		}
		have = copy(buf, buf[whole:have])
	}
}

// hasDeleted says whether there is a deleted file among lines of a maps file.
func hasDeleted(text []byte) bool {
	if !bytes.Contains(text, []byte(" (deleted)\n")) {
		return false
	}
	for line := range bytes.Lines(text) {
		if m := deletedMapping.FindSubmatch(bytes.TrimSuffix(line, []byte("\n"))); m != nil && isFile(m[1]) {
			return true
		}
	}
	return false
}

// openMapped opens what a process opens in a directory that it has open, if that is a
// deleted file which another one has mapped; nil for all else.
func openMapped(pid, dir int, name uintptr) *os.File {
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, dir))
	if err != nil || path.Base(link) != "map_files" {
		return nil
	}
	var text [40]byte // two addresses
	if err := readMemory(pid, text[:], name); err != nil {
		return nil
	}
	end := bytes.IndexByte(text[:], 0)
	var from, to uint64
	if end < 0 {
		return nil
	}
	if n, err := fmt.Sscanf(string(text[:end]), "%x-%x", &from, &to); n != 2 || err != nil {
		return nil
	}
	d, err := descriptorOf(pid, dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	var fs unix.Statfs_t
	if unix.Fstatfs(int(d.Fd()), &fs) != nil || fs.Type != unix.PROC_SUPER_MAGIC {
		return nil
	}
	entry := fmt.Sprintf("%x-%x", from, to)
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(d.Fd()), entry, buf)
	if err != nil {
		return nil
	}
	file, deleted := bytes.CutSuffix(buf[:n], []byte(" (deleted)"))
	if !deleted || !isFile(file) {
		return nil
	}
	fd, err := unix.Openat(int(d.Fd()), entry, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 0 {
		return nil
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY, 0)
	if err != nil {
		return nil
	}
	return f
}

// checkMapped is for a dump in which CRIU was not given mapped files: one that has become
// such since it began.
func (t *tree) checkMapped() error {
	if found, err := t.deletedMapped(); err != nil || !found {
		return err
	}
	return &refusal{frame.Failure{
		Code: "failed", Resource: "file mapped into memory", Message: "one was deleted or made meanwhile; try again",
	}}
}
