package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"cairn/api/client"
	"cairn/api/types"
)

// try verifies a checkpoint and restores it on trial.
func (h *host) try(id string) (types.Trial, error) {
	ctx, cancel := request()
	defer cancel()
	cp, err := client.Get[types.Checkpoint](h.client.VerifyCheckpoint(ctx, id, nil, types.VerifyCheckpoint{Trial: ptr(true)}))
	switch {
	case err != nil:
		return types.Trial{}, err
	case cp.Trial == nil:
		return types.Trial{}, errors.New("the answer says nothing of the trial")
	}
	return *cp.Trial, nil
}

// trialOperation is what the failpoints of a trial restore lie on.
func trialOperation() operation {
	return operation{
		later: true, // that it fails is in the answer
		prepare: func(s *subject) {
			s.anew()
			s.dump = ok(s.h.dump(s.sb.Id))(s.t)
		},
		do: func(s *subject) error {
			trial, err := s.h.try(s.dump.Id)
			if err == nil && (trial.Ok || trial.Error == nil || *trial.Error == "") {
				err = errors.New("the trial says that it went well")
			}
			return err
		},
		check: func(s *subject, _ string) {
			s.is(after, true)
			if list := ok(s.h.sandboxes())(s.t); len(list) != 1 {
				s.t.Errorf("a trial left sandboxes: %+v", list)
			}
			eventually(s.t, "only the sandbox has a container", func() bool { return len(s.h.names("pool", "s")) == 1 })
			if trial := ok(s.h.try(s.dump.Id))(s.t); !trial.Ok {
				s.t.Errorf("the next trial: %+v", trial)
			}
		},
	}
}

func TestTrialRestore(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	sb := ok(h.create(types.CreateSandbox{
		Name: ptr("alone"), Command: ptr([]string{"sleep", "infinity"}), Network: ptr(types.None),
		Hooks: &types.Hooks{{Event: types.AfterRestore, Command: &[]string{"false"}}, {Event: types.AfterFork, Command: &[]string{"false"}}},
	}))(t)
	ok(h.sh(sb.Id, putState(before, after)))(t)
	h.play(t, sb.Id, "idle", "/tmp/idle")
	with := ok(h.dump(sb.Id))(t)
	ok(h.sh(sb.Id, putState(after, before)))(t)
	files := ok(h.checkpoint(sb.Id))(t)
	was := len(ok(h.checkpoints())(t))
	used := len(ok(h.layers())(t))

	if trial := ok(h.try(files.Id))(t); !trial.Ok || trial.Processes != 0 || trial.Error != nil || trial.DurationMs <= 0 {
		t.Errorf("files alone: %+v", trial)
	}
	if trial := ok(h.try(with.Id))(t); !trial.Ok || trial.Processes != 2 || trial.Error != nil {
		t.Errorf("with processes: %+v", trial)
	}
	done(t, h.remove(sb.Id)) // a checkpoint needs its sandbox no more
	if trial := ok(h.try(with.Id))(t); !trial.Ok || trial.Processes != 2 {
		t.Errorf("after the sandbox: %+v", trial)
	}
	if list := ok(h.sandboxes())(t); len(list) != 0 {
		t.Errorf("trials left sandboxes: %+v", list)
	}
	if now := len(ok(h.checkpoints())(t)); now != was {
		t.Errorf("%d checkpoints, %d before", now, was)
	}
	if now := len(ok(h.layers())(t)); now > used {
		t.Errorf("%d layers, %d before", now, used)
	}
	if slots := h.names("pool", "s"); len(slots) != 0 {
		t.Errorf("trials left containers: %v", slots)
	}
	if cp := ok(h.verify(with.Id))(t); cp.Trial != nil {
		t.Errorf("a trial that nobody asked for: %+v", cp.Trial)
	}

	flip(t, h.imageFile(t))
	if _, err := h.try(with.Id); client.CodeOf(err) != types.CheckpointCorrupt {
		t.Errorf("with a damaged image: %v", err)
	}
	if got := ok(h.getCheckpoint(with.Id))(t); got.Durability != types.DurabilityDamaged {
		t.Errorf("the checkpoint is %s", got.Durability)
	}
	if trial := ok(h.try(files.Id))(t); !trial.Ok {
		t.Errorf("the other checkpoint: %+v", trial)
	}
}

// imageFile gives a file with the memory of processes.
func (h *host) imageFile(t *testing.T) string {
	t.Helper()
	h.settled(t) // what a dump wrote is replaced soon
	var found []string
	done(t, filepath.WalkDir(filepath.Join(h.poolDir(), "l"), func(path string, d os.DirEntry, err error) error {
		if match, _ := filepath.Match("pages-*.img", filepath.Base(path)); match {
			found = append(found, path)
		}
		return err
	}))
	if len(found) == 0 {
		t.Fatal("no checkpoint holds memory of processes")
	}
	return found[0]
}

// flip changes one bit of a file, as a disk does it: without telling the file system.
func flip(t *testing.T, path string) {
	t.Helper()
	st, err := os.Stat(path)
	done(t, err)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	done(t, err)
	one, at := make([]byte, 1), st.Size()/2
	_, err = f.ReadAt(one, at)
	done(t, err)
	one[0] ^= 0x10
	_, err = f.WriteAt(one, at)
	done(t, errors.Join(err, f.Close(), os.Chtimes(path, st.ModTime(), st.ModTime())))
}
