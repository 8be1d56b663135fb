package overlay

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fdInfo is what /proc/PID/fdinfo/N says that matters here.
type fdInfo struct {
	flags   int64
	mountID int
	locked  bool
	passed  bool     // descriptors are in flight in it
	watches []string // inotify and fanotify lines
}

func parseFDInfo(b []byte) (fdInfo, error) {
	var i fdInfo
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		var err error
		switch key {
		case "flags":
			i.flags, err = strconv.ParseInt(value, 8, 64)
		case "mnt_id":
			i.mountID, err = strconv.Atoi(value)
		case "lock":
			i.locked = true
		case "scm_fds":
			i.passed = value != "0"
		}
		if strings.HasPrefix(line, "inotify ") || strings.HasPrefix(line, "fanotify ") {
			i.watches = append(i.watches, line)
		}
		if err != nil {
			return i, fmt.Errorf("overlay: fdinfo line %q: %w", line, err)
		}
	}
	return i, nil
}

// descriptors checks the open files of a thread.
func (c *checker) descriptors(pid, tid int) (*Blocker, error) {
	dir := fmt.Sprintf("task/%d/", tid)
	d, err := c.pool.openProc(pid, dir+"fd", unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, ErrGone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	fds, err := readNumbers(d)
	if err != nil {
		return nil, procError(pid, err)
	}
	for _, fd := range fds {
		b, err := c.pool.readProc(pid, dir+"fdinfo/"+strconv.Itoa(fd))
		if errors.Is(err, ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		info, err := parseFDInfo(b)
		if err != nil {
			return nil, err
		}
		name := dir + "fd/" + strconv.Itoa(fd)
		link, err := c.pool.procLink(pid, name)
		if errors.Is(err, ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		reason, err := c.descriptor(pid, name, link, info)
		if err != nil {
			return nil, err
		}
		if reason != "" {
			return &Blocker{Reason: reason, Path: link}, nil
		}
	}
	return nil, nil
}

func (c *checker) descriptor(pid int, name, link string, info fdInfo) (Reason, error) {
	switch {
	case link == "anon_inode:[io_uring]":
		return BlockedByIOUring, nil
	case link == "anon_inode:[fanotify]":
		return BlockedByWatch, nil
	case link == "anon_inode:inotify" || link == "anon_inode:[inotify]":
		if c.watchesElsewhere(info.watches) {
			return "", nil
		}
		return BlockedByWatch, nil
	case strings.HasPrefix(link, "socket:["):
		if info.passed {
			return BlockedByPassedFD, nil
		}
		return c.socket(pid, strings.TrimSuffix(strings.TrimPrefix(link, "socket:["), "]"))
	}
	f, err := c.pool.openProc(pid, name, unix.O_PATH)
	if errors.Is(err, ErrGone) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", fmt.Errorf("overlay: process %d: %w", pid, err)
	}
	if info.mountID != c.root.MountID && st.Dev != c.root.Dev {
		return "", nil
	}
	switch {
	case info.flags&unix.O_PATH != 0:
		return BlockedByPath, nil
	case isDir(&st):
		return BlockedByDir, nil
	case !isFile(&st):
		return BlockedBySpecial, nil
	case info.flags&unix.O_ACCMODE != unix.O_RDONLY:
		return BlockedByWriter, nil
	case info.locked:
		return BlockedByLock, nil
	}
	inUpper, err := c.inUpper(link, &st)
	if inUpper {
		return BlockedByReader, err
	}
	return "", err
}

// inUpper says whether a regular file, open at the path that /proc shows, may
// be one of the upper's, which later changes go to until the switch and not
// afterwards.
func (c *checker) inUpper(link string, st *unix.Stat_t) (bool, error) {
	if st.Nlink == 0 {
		return false, nil // nobody can open it any more
	}
	if strings.HasSuffix(link, " (deleted)") {
		return true, nil
	}
	f, err := resolve(c.upper, strings.TrimPrefix(link, "/"))
	if err == nil {
		f.Close()
		return true, nil
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENAMETOOLONG) {
		return true, nil
	}
	return false, err
}

// watchesElsewhere says whether all watches are on other file systems.
func (c *checker) watchesElsewhere(lines []string) bool {
	for _, line := range lines {
		elsewhere := false
		for f := range strings.SplitSeq(line, " ") {
			// sdev is the device as the kernel packs it.
			if v, ok := strings.CutPrefix(f, "sdev:"); ok {
				dev, err := strconv.ParseUint(v, 16, 64)
				elsewhere = err == nil && unix.Mkdev(uint32(dev>>20), uint32(dev&0xfffff)) != c.root.Dev
			}
		}
		if !elsewhere {
			return false
		}
	}
	return true
}

// socket checks whether a socket is bound to a path on the overlay.
func (c *checker) socket(pid int, inode string) (Reason, error) {
	paths, err := c.socketPaths(pid)
	if err != nil {
		return "", err
	}
	path, bound := paths[inode]
	if !bound || strings.HasPrefix(path, "@") {
		return "", nil
	}
	if !strings.HasPrefix(path, "/") {
		return BlockedBySocket, nil // unclear, or relative to who knows what
	}
	root, err := c.pool.openProc(pid, "root", unix.O_PATH)
	if err != nil {
		return "", err
	}
	defer root.Close()
	f, err := openInRoot(root, path)
	if err != nil {
		return BlockedBySocket, nil
	}
	defer f.Close()
	on, _, err := c.where(f)
	if on {
		return BlockedBySocket, err
	}
	return "", err
}

// openInRoot opens what a path means to a process with that root.
func openInRoot(root *os.File, path string) (*os.File, error) {
	fd, err := unix.Openat2(int(root.Fd()), path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}
