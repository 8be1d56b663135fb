package helper

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"cairn/criu/internal/frame"

	"github.com/checkpoint-restore/go-criu/v7"
	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// dumping is told by CRIU what it is about to do.
type dumping struct {
	criu.NoNotify
	c       *conn
	tree    *tree
	files   *resolver
	pid     int // of PID 1, on the host
	root    int
	filters int
	mapped  bool // CRIU is given mapped files
	err     error
	marks   map[string]int64
	begun   time.Time

	ends     bool                         // the tree is ended by the dump
	complete func() ([]frame.File, error) // makes the images what a restore takes
}

// PostDump is called when the tree is dumped and stands still.
func (d *dumping) PostDump() error {
	d.marks["stopped"] = time.Since(d.begun).Microseconds()
	if d.files.failed() {
		d.err = lostWatch()
		return d.err
	}
	if err := d.segments(); err != nil {
		d.err = fmt.Errorf("edit the images of System V segments: %w", err)
		return d.err
	}
	if d.err = d.sessions(); d.err != nil {
		return d.err
	}
	if err := d.ghosts(); err != nil {
		d.err = fmt.Errorf("edit the images of deleted files: %w", err)
		return d.err
	}
	checked := make(chan error, 1)
	go func() {
		err := d.tree.check(d.root, d.filters)
		if err == nil && !d.mapped {
			err = d.tree.checkMapped()
		}
		checked <- err
	}()
	e := frame.Event{Kind: frame.Stopped}
	if d.ends { // right after: the images are completed before anybody is asked
		if e.Files, d.err = d.complete(); d.err != nil {
			d.err = errors.Join(d.err, <-checked)
			return d.err
		}
	}
	err := d.c.ask(e)
	d.err = errors.Join(<-checked, err)
	d.marks["captured"] = time.Since(d.begun).Microseconds()
	return d.err
}

// segments carries System V segments.
func (d *dumping) segments() error {
	images, err := hostImages()
	if err != nil {
		return err
	}
	defer images.Close()
	return carrySegments(images, d.tree, d.root)
}

func (d *dumping) sessions() error {
	images, err := hostImages()
	if err != nil {
		return err
	}
	defer images.Close()
	return checkSessions(images, d.tree)
}

func (d *dumping) ghosts() error {
	images, err := hostImages()
	if err != nil {
		return err
	}
	defer images.Close()
	return freePaths(images, d.pid)
}

func hostImages() (*os.File, error) {
	fd, err := unix.FcntlInt(frame.FDHostImages, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "images"), nil
}

func dumpOptions(q frame.Request) *rpc.CriuOpts {
	o := options(q)
	o.CpuCap = proto.Uint32(cpuCapabilities)
	o.Pid = proto.Int32(int32(q.Root))
	o.LeaveRunning = proto.Bool(q.LeaveRunning)
	o.Timeout = proto.Uint32(q.TimeoutS)
	if q.Parent != "" {
		o.ParentImg = proto.String(q.Parent)
	}
	if q.TrackMemory {
		o.TrackMem = proto.Bool(true)
	}
	return o
}

func dump(c *conn, s frame.Setup) frame.Event {
	t, err := openTree(s.PID)
	if err != nil {
		return failed(err)
	}
	defer t.Close()
	mapped, err := t.deletedMapped()
	if err != nil {
		return failed(err)
	}
	w, err := startWorker(s, nil, mapped)
	if err != nil {
		return failed(err)
	}
	filters, err := readFilters(s.PID)
	if err == nil {
		err = c.tell(frame.Event{Kind: frame.Ready})
	}
	var q frame.Request
	if err == nil {
		err = c.dec.Decode(&q)
	}
	if err != nil {
		_ = w.end()
		return failed(err)
	}
	images := os.NewFile(frame.FDHostImages, "images")
	defer images.Close()
	complete := func() ([]frame.File, error) {
		if err := addFilters(images, filters); err != nil {
			return nil, fmt.Errorf("add the system call filters to the images: %w", err)
		}
		files, err := freeSizes(images, q.External)
		if err != nil {
			return nil, fmt.Errorf("edit the list of files: %w", err)
		}
		return files, nil
	}
	d := &dumping{c: c, tree: t, pid: s.PID, root: q.Root, filters: len(filters), mapped: mapped, marks: map[string]int64{}, begun: time.Now(), ends: !q.LeaveRunning, complete: complete}
	end, err := d.run(w, q)
	if err != nil && d.err == nil && !mapped && lostMapping.MatchString(w.log.text()) {
		// A file was deleted since it was looked.
		if d.mapped, _ = t.deletedMapped(); d.mapped {
			if err := empty(images); err != nil {
				return failed(err)
			}
			if w, err = startWorker(s, nil, true); err != nil {
				return failed(err)
			}
			end, err = d.run(w, q)
		}
	}
	if err != nil {
		return d.failed(err, end, w, q, s)
	}
	e := frame.Event{Micros: d.marks}
	if q.LeaveRunning {
		if e.Files, err = complete(); err != nil {
			return failed(err)
		}
	}
	if e.Dump, err = readStats(images); err != nil {
		return failed(fmt.Errorf("read CRIU's figures: %w", err))
	}
	d.marks["edited"] = time.Since(d.begun).Microseconds()
	return e
}

// run has CRIU dump, and waits for its end.
func (d *dumping) run(w *worker, q frame.Request) (end, err error) {
	d.files = w.files
	err = w.Dump(dumpOptions(q), d)
	d.marks["answered"] = time.Since(d.begun).Microseconds()
	end = w.end()
	d.marks["ended"] = time.Since(d.begun).Microseconds()
	return end, err
}

// empty removes the files of a directory.
func empty(dir *os.File) error {
	names, err := dir.Readdirnames(-1)
	for _, name := range names {
		if err == nil {
			err = unix.Unlinkat(int(dir.Fd()), name, 0)
		}
	}
	return err
}

// failed explains why the dump did not work.
func (d *dumping) failed(err, end error, w *worker, q frame.Request, s frame.Setup) frame.Event {
	var f *refusal
	switch {
	case errors.As(d.err, &f):
		return frame.Event{Failure: &f.Failure}
	case errors.Is(d.err, errAborted):
		return frame.Event{Failure: &frame.Failure{Code: "aborted", Message: "the caller gave up"}}
	case killed(end): // whatever it had still written, this is why
		return frame.Event{Failure: &frame.Failure{Code: "interrupted", Message: "CRIU was killed before it had done its work"}}
	}
	if d.err != nil {
		return failed(d.err)
	}
	why := explain(w.log.text(), errors.Join(err, end), d.tree, "dump")
	if why.PID == 0 && why.Code == "unsupported" || why.Code == "failed" {
		if again := d.again(q, s); again != nil && again.Code == why.Code {
			why = again
		}
	}
	return frame.Event{Failure: why}
}

// killed says whether a signal ended the program that was waited for.
func killed(end error) bool {
	var exit *exec.ExitError
	if !errors.As(end, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled()
}

// again dumps once more with a full log, which is too slow to keep every time, to learn
// which process is the reason. Nothing comes of it: the tree runs on.
func (d *dumping) again(q frame.Request, s frame.Setup) *frame.Failure {
	w, err := startWorker(s, nil, d.mapped)
	if err != nil {
		return nil
	}
	const everything = 4
	q.LogLevel = everything
	q.LeaveRunning = true
	err = w.Dump(dumpOptions(q), &refusing{})
	end := w.end()
	return explain(w.log.text(), errors.Join(err, end), d.tree, "dump")
}

// refusing lets no dump succeed.
type refusing struct{ criu.NoNotify }

func (refusing) PostDump() error { return errAborted }
