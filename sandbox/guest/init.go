package guest

import (
	"math"
	"syscall"
	"time"

	"cairn/sandbox/stem/wire"

	"golang.org/x/sys/unix"
)

const (
	// endGrace is what processes get between SIGTERM and SIGKILL when the sandbox ends.
	endGrace = 2 * time.Second
	// A stem that lived for less than steady is started again only after a pause, which
	// doubles from minPause to maxPause.
	steady   = time.Second
	minPause = 10 * time.Millisecond
	maxPause = 2 * time.Second
	// heldPause is how often PID 1 looks for the end of a restore; SIGUSR1 makes it look at once.
	heldPause = 100 * time.Millisecond
	// logLimit is the size in bytes at which a starting stem empties its log.
	logLimit = 64 << 10
)

// initd is PID 1.
type initd struct {
	dir     string
	records records
	stem    int // pid, 0 when there is none
	started time.Time
	pause   time.Duration
}

func runInit(dir string) int {
	sig := catchSignals()
	ignoreUncaught()
	// Whatever the runtime left open is not the stem's.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		logf("close_range: ", err.Error())
	}
	leaveLowPIDs()
	d := &initd{dir: dir, records: newRecords(dir), pause: minPause}
	next := time.NewTimer(0)
	for {
		select {
		case <-sig.term:
			return d.end(sig)
		case <-sig.child:
			if d.reap() {
				next.Reset(d.delay())
			}
		case <-sig.wake:
			next.Reset(0)
		case <-next.C:
			if again := d.ensureStem(); again > 0 {
				next.Reset(again)
			}
		}
	}
}

// reap reaps all that has ended and reports whether the stem was among it.
func (d *initd) reap() bool {
	stemEnded := false
	for {
		e, ok := peek()
		if !ok {
			return stemEnded
		}
		if e.pid == d.stem {
			logf("the stem ended: ", string(e.how), " ", itoa(e.value))
			d.stem, stemEnded = 0, true
		} else {
			d.record(e)
		}
		e.reap()
	}
}

// record writes the status of a process that a stem, dead by now, had started.
func (d *initd) record(e ended) {
	var stat procStat
	for id, rec := range d.records.unfinished() {
		if rec.PID != e.pid {
			continue
		}
		if stat.startTicks == 0 {
			var err error
			if stat, err = readStat(e.pid); err != nil {
				return
			}
		}
		if rec.StartTicks != stat.startTicks {
			continue
		}
		if err := d.records.writeStatus(id, e.status(rec.StartedUS)); err != nil {
			logf("status of ", id, ": ", err.Error())
		}
		return
	}
}

// delay returns how long to wait before the next stem.
func (d *initd) delay() time.Duration {
	if time.Since(d.started) >= steady {
		d.pause = minPause
		return 0
	}
	pause := d.pause
	d.pause = min(2*d.pause, maxPause)
	return pause
}

// ensureStem starts a stem if there is none. It returns when to try again, 0 for not.
func (d *initd) ensureStem() time.Duration {
	if d.stem != 0 {
		return 0
	}
	var st unix.Stat_t
	held := unix.Lstat(d.dir+"/"+wire.FileNoStem, &st) == nil
	if !d.started.IsZero() || held {
		if pid := findStem(); pid != 0 {
			d.stem, d.started = pid, time.Now()
			// A restored one has to look at its records again.
			_ = unix.Kill(pid, unix.SIGUSR1)
			d.reap() // it may have ended while it was not known
			return 0
		}
	}
	if held {
		return heldPause
	}
	d.started = time.Now()
	pid, err := d.startStem()
	if err != nil {
		logf("stem: ", err.Error())
		return d.delay()
	}
	d.stem = pid
	return 0
}

func (d *initd) startStem() (int, error) {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(null)
	logFD, err := d.openLog()
	if err != nil {
		logFD = null
	} else {
		defer unix.Close(logFD)
	}
	return syscall.ForkExec("/proc/self/exe", []string{"cairn-init", stemRole}, &syscall.ProcAttr{
		Dir: "/",
		// One thread of Go code is enough, and a heap of some hundred kilobytes.
		Env:   []string{"GOMAXPROCS=1", "GOGC=20"},
		Files: []uintptr{uintptr(null), uintptr(null), uintptr(logFD)},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
}

func (d *initd) openLog() (int, error) {
	fd, err := unix.Open(d.dir+"/"+wire.FileLog,
		unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return -1, unix.EINVAL
	}
	if st.Size > logLimit {
		// An uncut log is better than none.
		_ = unix.Ftruncate(fd, 0)
	}
	return fd, nil
}

// end ends every process, asking first, and returns PID 1's exit code.
func (d *initd) end(sig signals) int {
	_ = unix.Kill(-1, unix.SIGTERM)
	// A stopped process acts on SIGTERM only once it continues.
	_ = unix.Kill(-1, unix.SIGCONT)
	grace := time.NewTimer(endGrace)
	tick := time.NewTicker(heldPause)
	force := false
	for {
		d.reap()
		if force {
			_ = unix.Kill(-1, unix.SIGKILL)
		}
		if unix.Kill(-1, 0) == unix.ESRCH {
			return 0
		}
		select {
		case <-sig.child:
		case <-tick.C:
			// Processes that were put here from outside are not PID 1's children.
		case <-grace.C:
			force = true
		}
	}
}
