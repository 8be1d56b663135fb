package guest

import (
	"cairn/sandbox/stem/wire"

	"golang.org/x/sys/unix"
)

// refresh writes the records of the running processes anew, after this stem was restored
// from a checkpoint, possibly in another sandbox: they have new starting times, and what
// the records said of them since is of another past.
func (s *stem) refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, p := range s.procs {
		if p.adopted {
			continue
		}
		st, err := readStat(p.pid)
		if err != nil || st.startTicks == p.ticks {
			continue
		}
		p.ticks = st.startTicks
		if err := unix.Unlink(s.records.path(id, wire.FileStatus)); err != nil && err != unix.ENOENT {
			logf("status of ", id, ": ", err.Error())
		}
		if err := s.records.writePID(id, wire.PIDRecord{PID: p.pid, StartTicks: p.ticks, StartedUS: p.startedUS}); err != nil {
			logf("pid of ", id, ": ", err.Error())
		}
	}
}
