package helper

import (
	"errors"
	"os"
	"time"

	"cairn/criu/internal/frame"

	"github.com/checkpoint-restore/go-criu/v7"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// restoring is told by CRIU what it is about to do.
type restoring struct {
	criu.NoNotify
	c     *conn
	root  int
	err   error
	tree  *tree
	want  int
	marks map[string]int64
	begun time.Time

	reaper int          // pid inside of a root that is to be a subreaper from its birth; 0 for not
	born   <-chan error // has the result once it is
}

// PreRestore is called before the first process is made.
func (r *restoring) PreRestore() error {
	if r.reaper == 0 {
		return nil
	}
	pid, err := findCRIU()
	if err == nil {
		r.born, err = watchBirth(pid, r.reaper)
	}
	r.err = err
	return err
}

// PostRestore is called when the tree is there and stands still.
func (r *restoring) PostRestore(pid int32) error {
	r.marks["restored"] = time.Since(r.begun).Microseconds()
	r.root = int(pid)
	if r.born != nil {
		if r.err = <-r.born; r.err != nil {
			return r.err
		}
	}
	r.err = r.c.ask(frame.Event{Kind: frame.Restored, Root: r.root})
	r.marks["kept"] = time.Since(r.begun).Microseconds()
	return r.err
}

// PostResume is called when the tree runs. Only then does it have its final rights.
func (r *restoring) PostResume() error {
	r.err = r.tree.checkRestored(r.want)
	r.marks["resumed"] = time.Since(r.begun).Microseconds()
	return r.err
}

func restore(c *conn, s frame.Setup) frame.Event {
	images := os.NewFile(frame.FDHostImages, "images")
	defer images.Close()
	taken, err := pidsOf(images)
	var processes []member
	if err == nil {
		processes, err = members(images)
	}
	if err != nil {
		return frame.Event{Failure: &frame.Failure{Code: "images", Resource: "images", Message: "the images can't be read: " + err.Error()}}
	}
	likePID1(s.PID)
	w, err := startWorker(s, taken, false)
	if err != nil {
		return failed(err)
	}
	// Everything up to here may be done while others still run in the sandbox.
	if err = c.ask(frame.Event{Kind: frame.Ready}); err == nil {
		err = w.enter()
	}
	var q frame.Request
	if err == nil {
		err = c.dec.Decode(&q)
	}
	t := &tree{}
	if err == nil {
		t, err = openTree(s.PID)
	}
	if err != nil {
		_ = w.end()
		return failed(err)
	}
	defer t.Close()
	r := &restoring{c: c, tree: t, want: t.filters(1), marks: map[string]int64{}, begun: time.Now()}
	if orphans(processes) {
		r.reaper = processes[0].pid
	}
	o := options(q)
	// Images of before this was noted are of some CPU.
	if unix.Faccessat(int(images.Fd()), cpuFile, unix.F_OK, unix.AT_SYMLINK_NOFOLLOW) == nil {
		o.CpuCap = proto.Uint32(cpuCapabilities)
	}
	kills := oomKills(s.Cgroups)
	err = w.Restore(o, r)
	r.marks["answered"] = time.Since(r.begun).Microseconds()
	end := w.end()
	r.marks["ended"] = time.Since(r.begun).Microseconds()
	if err == nil {
		return frame.Event{Root: r.root, Micros: r.marks}
	}
	// Whoever is left of the tree is not what was dumped.
	cleared := clearAll()
	var f *refusal
	switch {
	case cleared.Failure != nil:
		return cleared
	case errors.As(r.err, &f):
		return frame.Event{Failure: &f.Failure}
	case errors.Is(r.err, errAborted):
		return frame.Event{Failure: &frame.Failure{Code: "aborted", Message: "the caller gave up"}}
	case oomKills(s.Cgroups) > kills:
		return frame.Event{Failure: &frame.Failure{Code: "failed", Resource: "memory", Message: "the processes need more than the sandbox may have; raise its limit"}}
	case r.err != nil && !errors.Is(r.err, errAborted) && !killed(end):
		return failed(r.err)
	case killed(end):
		return frame.Event{Failure: &frame.Failure{Code: "interrupted", Message: "CRIU was killed before it had done its work"}}
	}
	return frame.Event{Failure: explain(w.log.text(), errors.Join(err, end), t, "restore")}
}
