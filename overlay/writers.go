package overlay

import (
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// racyWindow is how much older than a look at an entry its last change must
// be for every later one to get another change time. Both are times of the
// same clock, so any difference would do; this allows for two ticks.
const racyWindow = 20 * time.Millisecond

// settledLimit is the time before which a change must have been, looked at
// from now on. It goes by the clock that the kernel stamps changes with.
func settledLimit() (unix.Timespec, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); err != nil {
		return now, os.NewSyscallError("clock_gettime", err)
	}
	return unix.NsecToTimespec(now.Nano() - racyWindow.Nanoseconds()), nil
}

// settledBefore says whether an entry's change time is before the limit. A
// file system that keeps whole seconds could give the same to a change two
// seconds later.
func settledBefore(st *unix.Stat_t, limit unix.Timespec) bool {
	if st.Ctim.Nsec == 0 {
		return st.Ctim.Sec+2 < limit.Sec
	}
	return st.Ctim.Nano() < limit.Nano()
}

// clockStep finds out whether the clock was set back, after which a change
// may get the change time of an earlier one.
type clockStep struct{ offset time.Duration }

const stepTolerance = 2 * time.Millisecond

func newClockStep() (clockStep, error) {
	o, err := clockOffset()
	return clockStep{o}, err
}

func (s clockStep) back() (bool, error) {
	o, err := clockOffset()
	return o < s.offset-stepTolerance, err
}

// clockOffset is how far the clock is ahead of the one that is never set.
// Being interrupted between the two readings makes it smaller, so that the
// largest of some counts.
func clockOffset() (time.Duration, error) {
	var best time.Duration
	for i := range 5 {
		var real, mono unix.Timespec
		if err := errors.Join(unix.ClockGettime(unix.CLOCK_REALTIME, &real), unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono)); err != nil {
			return 0, os.NewSyscallError("clock_gettime", err)
		}
		if o := time.Duration(real.Nano() - mono.Nano()); i == 0 || o > best {
			best = o
		}
	}
	return best, nil
}

// errNotRegular is that an entry is no regular file when it is opened.
var errNotRegular = errors.New("not a regular file")

// openRegular opens a file below a directory whose content may be swapped at
// any time. It opens nothing but a regular file, and never waits.
func openRegular(dirfd int, name string) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	at, err := unix.Openat(dirfd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, st, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(at)
	if err := unix.Fstat(at, &st); err != nil {
		return nil, st, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	if !isFile(&st) {
		return nil, st, &os.PathError{Op: "open", Path: name, Err: errNotRegular}
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(at), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOATIME, 0)
	if err != nil {
		return nil, st, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), st, nil
}

// noWriter says whether nobody has the file open for writing. A writable
// shared mapping and a write that is under way count as open. A read lease,
// which is granted only then, is the kernel's own word for it, for the
// mappings and passed descriptors of all processes alike; it is given back at
// once, and who opens the file meanwhile waits for that (or, with O_NONBLOCK,
// is refused).
func noWriter(f *os.File) bool {
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return false
	}
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return err == nil
}

// noHiddenWriter says whether nobody can change the file without changing
// its times, all processes being frozen: nobody has it open for writing, or if
// so its pages are clean, in which case the next write to a mapping faults.
func noHiddenWriter(f *os.File) bool {
	if noWriter(f) {
		return true
	}
	var cs unix.Cachestat_t
	if err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &cs, 0); err != nil {
		return false
	}
	return cs.Dirty == 0 && cs.Writeback == 0
}

// tracksMappedWrites says whether the first write to a page of a shared
// mapping changes the file's times, also after the page was only read. On
// tmpfs, which never writes pages back, it doesn't.
func (f Features) tracksMappedWrites() bool {
	switch f.FileSystem {
	case "ext4", "xfs", "btrfs":
		return true
	}
	return false
}
