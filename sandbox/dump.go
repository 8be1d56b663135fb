package sandbox

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Values of the field Processes of requests.
const (
	processesInclude = "include"
	processesExclude = "exclude"
)

// dumpTries is how often a dump is tried when processes end in the middle of it.
const dumpTries = 3

// checkpointProcesses takes files and processes as of one instant. done is false when
// only files are to be taken; cp.Reason says why then, unless nobody asked for more.
func (s *Service) checkpointProcesses(ctx context.Context, sb Sandbox, cp *Checkpoint, r *CheckpointRequest) (done bool, err error) {
	if r.Processes == processesExclude {
		return false, nil
	}
	if sb.State == StateStopped {
		cp.Reason = "the sandbox is stopped"
		return false, nil
	}
	c, err := s.container(sb)
	if err != nil {
		return false, err
	}
	pids, err := c.Processes()
	if err != nil {
		return false, err
	}
	const own = 2 // PID 1 and the stem
	if len(pids) <= own {
		cp.Reason = "no process runs"
		return false, nil
	}
	if err = s.o.Dumps.Usable(ctx); err == nil {
		r.keepRoot = true
		// Processes that come and go may be just ending when they are looked at.
		err = Errorf(CodeConflict, "not tried")
		for try := 0; try < dumpTries && CodeOf(err) == CodeConflict; try++ {
			d := dumping{s: s, sb: sb, c: c, end: r.Stop}
			err = d.run(ctx, cp)
		}
	}
	if err == nil {
		return true, nil
	}
	inTheirWay := []Code{CodeUnsupported, CodeTimeout, CodeConflict, CodeInternal}
	if r.Processes == processesInclude || r.Stop || !slices.Contains(inTheirWay, CodeOf(err)) {
		return false, err
	}
	var e *Error
	if cp.Reason = "they could not be had"; errors.As(err, &e) {
		cp.Reason = e.Message
	}
	s.log.Warn("a checkpoint has the files only", "sandbox", sb.ID, "err", err)
	return false, nil
}

// dumping is a checkpoint with processes in the making.
type dumping struct {
	s   *Service
	sb  Sandbox
	c   Container
	end bool // the sandbox is stopped by it

	images  string
	running []Process
	dumped  Dumped
}

// run takes the checkpoint. On an error nothing has changed, cp included.
func (d *dumping) run(ctx context.Context, cp *Checkpoint) error {
	s := d.s
	d.images = s.o.NewID("l")
	defer s.Pin(d.images)()
	var u undo
	defer u.run(ctx)
	// The disk limit is of what the sandbox writes, and this is the host's.
	if err := s.o.Layers.CreateUpper(ctx, d.images, 0, 0); err != nil {
		return err
	}
	u.add(func(ctx context.Context) { s.remove(ctx, d.images) })
	var err error
	if d.running, err = s.runningProcesses(ctx, d.sb.ID); err != nil {
		return err
	}
	if d.end {
		err = d.sleep(ctx, cp)
	} else {
		err = d.live(ctx, cp)
	}
	if cp.Processes {
		u.release()
	}
	return err
}

// runningProcesses gives the processes that were started by request and run.
func (s *Service) runningProcesses(ctx context.Context, sandboxID string) ([]Process, error) {
	list, err := s.Processes(ctx, sandboxID)
	return slices.DeleteFunc(list, func(p Process) bool { return p.State != ProcessRunning }), err
}

// add completes the checkpoint with the processes.
func (d *dumping) add(cp *Checkpoint) {
	cp.Processes, cp.Reason = true, ""
	cp.Images, cp.ImagesDigest, cp.Running = d.images, d.dumped.Digest, d.running
	cp.Program = d.c.Program()
	cp.Sizes.ProcessBytes = d.dumped.Bytes
	cp.Timings.FreezeMS = milliseconds(d.dumped.Freeze)
}

// take dumps. What is frozen can neither be dumped nor prepared for it: a paused sandbox
// runs on until it is stopped in another way, for some milliseconds.
func (d *dumping) take(ctx context.Context, stopped func(context.Context) error, complete func(Dumped) error) (dumped Dumped, err error) {
	s := d.s
	if d.sb.State == StatePaused {
		s.thaw(ctx, d.c)
		defer func() {
			if err == nil && d.end {
				return
			}
			ctx, cancel := outlive(ctx)
			defer cancel()
			if err := d.c.Freeze(ctx); err != nil {
				s.log.Error("cannot pause a sandbox again", "sandbox", d.sb.ID, "err", err)
			}
		}()
	}
	dump, err := s.o.Dumps.PrepareDump(ctx, d.c, d.images, ids(d.running))
	if err != nil {
		return Dumped{}, err
	}
	defer dump.Close()
	if err := s.reach("dump.prepared"); err != nil {
		return Dumped{}, err
	}
	return dump.Take(ctx, d.end, stopped, complete)
}

// stop dumps, and calls while when everything stands still.
func (d *dumping) stop(ctx context.Context, while func(context.Context) error) (time.Duration, error) {
	var failed error
	dumped, err := d.take(ctx, func(ctx context.Context) error {
		failed = while(ctx)
		return failed
	}, nil)
	if failed != nil {
		return 0, failed
	}
	d.dumped = dumped
	return dumped.Freeze, errors.Join(err, d.s.reach("dump.taken"))
}

// live leaves the sandbox running. Its files are copied, not switched: those that its
// processes have open or run must have a path where they live, for the next dump.
func (d *dumping) live(ctx context.Context, cp *Checkpoint) error {
	s, sb := d.s, d.sb
	empty, err := s.o.Layers.Empty(sb.Upper)
	if err != nil {
		return err
	}
	if !empty {
		made, err := s.copyUpper(ctx, sb, *cp, d.stop, d.add)
		if err == nil {
			*cp = made
		}
		return err
	}
	_, err = d.stop(ctx, func(context.Context) error {
		empty, err := s.o.Layers.Empty(sb.Upper)
		if err == nil && !empty {
			err = Errorf(CodeTimeout, "its files changed while they were looked at; try again")
		}
		return err
	})
	if err != nil {
		return err
	}
	made := *cp
	d.add(&made)
	made.Method, made.Stack = MethodSwitch, sb.Below
	sb.Head, sb.HeadMoved, sb.UpdatedAt = made.ID, false, s.o.Now()
	made.Timings.TotalMS = s.took(made)
	if err := s.update(ctx, func(tx Tx) error { return s.write(tx, "", commit{Sandbox: sb, Checkpoint: &made}) }); err != nil {
		return err
	}
	*cp = made
	return nil
}

// sleep leaves the sandbox stopped. The records are written while the processes still
// stand there: they end only once they can be brought back.
func (d *dumping) sleep(ctx context.Context, cp *Checkpoint) error {
	s, next, made := d.s, d.sb, *cp
	upper := s.o.NewID("l")
	defer s.Pin(upper)()
	var u undo
	defer u.run(ctx)
	complete := func(dumped Dumped) error {
		d.dumped = dumped
		d.add(&made)
		empty, err := s.o.Layers.Empty(next.Upper)
		if err != nil {
			return err
		}
		if empty {
			made.Method, made.Stack = MethodSwitch, next.Below
			next.Head, next.HeadMoved = made.ID, false
		} else {
			if err := s.o.Layers.CreateUpper(ctx, upper, next.Project, next.Config.Resources.DiskBytes); err != nil {
				return err
			}
			u.add(func(ctx context.Context) { s.remove(ctx, upper) })
			next.Base = slices.Concat([]string{next.Upper}, next.Base)
			sealed(&next, &made, upper)
		}
		next.State, next.Reason, next.Container, next.Asleep, next.UpdatedAt = StateStopped, "", "", made.ID, s.o.Now()
		made.Timings.TotalMS = s.took(made)
		if err := s.reach("sleep.dumped"); err != nil {
			return err
		}
		err = s.update(ctx, func(tx Tx) error {
			return s.write(tx, "", commit{
				Sandbox: next, Checkpoint: &made, Processes: asleep(slices.Clone(d.running)),
				Event: "sandbox.stopped", Data: map[string]any{"reason": "", "checkpoint": made.ID},
			})
		})
		if err != nil {
			return err
		}
		u.release()
		*cp = made
		// Their ends, which follow, are not ends.
		s.putAsleep(next.ID)
		s.passed("sleep.committed")
		return nil
	}
	_, err := d.take(ctx, func(context.Context) error { return nil }, complete)
	if !cp.Processes {
		return err
	}
	if err != nil { // it is recorded, and whatever still runs ends with the container
		s.log.Warn("processes did not end after their checkpoint", "sandbox", d.sb.ID, "err", err)
	}
	s.drop(d.sb.ID)
	s.destroy(ctx, d.c.Name())
	return nil
}

// asleep marks the processes as that.
func asleep(list []Process) []Process {
	for i := range list {
		list[i].State = ProcessAsleep
	}
	return list
}

// loseAsleep records that the processes that the sandbox was stopped with do not come
// back to it.
func (s *Service) loseAsleep(tx Tx, sb Sandbox) error {
	if sb.Asleep == "" {
		return nil
	}
	list, err := tx.Processes(sb.ID)
	if err != nil {
		return err
	}
	for _, p := range list {
		if p.State != ProcessAsleep {
			continue
		}
		p.State, p.ExitedAt = ProcessLost, s.o.Now()
		if err := tx.PutProcess(p); err != nil {
			return err
		}
	}
	return nil
}

// putAsleep ends the waits for the processes of a sandbox without recording an end.
func (s *Service) putAsleep(sandboxID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.live[sandboxID]; l != nil {
		for _, p := range l.processes {
			close(p.asleep)
		}
	}
}

var errAsleep = errors.New("the sandbox was stopped; its processes come back when it is resumed")

// dumpedProcesses is what a restore of the checkpoint's processes is asked for.
func dumpedProcesses(cp Checkpoint, attach func(context.Context) error) DumpedProcesses {
	return DumpedProcesses{Layer: cp.Images, IDs: ids(cp.Running), Attach: attach}
}

func ids(list []Process) []string {
	out := make([]string, len(list))
	for i, p := range list {
		out[i] = p.ID
	}
	return out
}

// revived gives the records of a checkpoint's processes as those of a sandbox.
func revived(cp Checkpoint, sandboxID string) []Process {
	list := slices.Clone(cp.Running)
	for i := range list {
		list[i].SandboxID = sandboxID
	}
	return list
}

// attendRevived waits for processes that were brought back. Whom somebody waits for
// already is waited for on.
func (s *Service) attendRevived(sandboxID string, c Container, list []Process) {
	for _, proc := range list {
		if s.liveProcess(sandboxID, proc.ID) != nil {
			continue
		}
		s.attend(sandboxID, c, attended(c, proc), ExecRequest{})
	}
}

// settleEnds returns when the ends of those of the processes that have ended are
// recorded, so that nothing overtakes what is recorded next.
func (s *Service) settleEnds(sandboxID string, list []Process) {
	for _, proc := range list {
		p := s.liveProcess(sandboxID, proc.ID)
		if p == nil {
			continue
		}
		select {
		case <-p.done:
			select {
			case <-p.ended:
			case <-s.background.Done():
			}
		default:
		}
	}
}

// wantsProcesses says whether the processes of a checkpoint are to be brought back.
func wantsProcesses(cp Checkpoint, processes string) (bool, error) {
	if processes == processesInclude && !cp.Processes {
		return false, &Error{
			Code: CodeUnsupported, Field: "processes",
			Message: "checkpoint " + cp.ID + " has no processes: " + first(cp.Reason, "they were excluded"),
		}
	}
	return cp.Processes && processes != processesExclude, nil
}
