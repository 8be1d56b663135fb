package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"cairn/api/client"
	"cairn/api/types"
)

// TestHostRestarted has the daemon believe that the host went down: what was
// durable is sound, what was only captured is lost and says so.
func TestHostRestarted(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	sb := ok(h.create(types.CreateSandbox{}))(t)
	ok(h.sh(sb.Id, putState(before, after)))(t)
	safe := ok(h.durable(sb.Id))(t)
	h.arm("durable.sealed=error") // nothing becomes durable any more
	ok(h.sh(sb.Id, putState(after, before)))(t)
	lost := ok(h.checkpoint(sb.Id))(t)
	h.kill()
	for _, p := range h.processes() {
		if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			t.Fatal(err)
		}
	}
	eventually(t, "nothing of it runs", func() bool { return len(h.processes()) == 0 })
	done(t, os.WriteFile(filepath.Join(h.root, "boot-id"), []byte("00000000-0000-0000-0000-000000000000\n"), 0o600))
	h.arm("")

	if got := ok(h.sandbox(sb.Id))(t); got.State != types.SandboxStateStopped || got.Reason == "" {
		t.Errorf("the sandbox is %s: %s", got.State, got.Reason)
	}
	if got := ok(h.getCheckpoint(lost.Id))(t); got.Durability != types.DurabilityLost {
		t.Errorf("the captured checkpoint is %s", got.Durability)
	}
	h.refused(t, sb.Id, lost.Id, types.CheckpointLost)
	if _, err := h.verify(lost.Id); client.CodeOf(err) != types.CheckpointLost {
		t.Errorf("verify: %v", err)
	}
	ok(h.verify(safe.Id))(t)
	ok(h.restore(sb.Id, safe.Id))(t)
	ok(h.resume(sb.Id))(t)
	if got := ok(h.stateOf(sb.Id))(t); got != before {
		t.Errorf("the files are those of %s", got)
	}
	done(t, h.deleteCheckpoint(lost.Id))
	h.restart()
	if got := ok(h.getCheckpoint(safe.Id))(t); got.Durability != types.DurabilityDurable {
		t.Errorf("the durable checkpoint is %s", got.Durability)
	}
}

// refused checks that a checkpoint cannot be used, and that nothing happened.
func (h *host) refused(t *testing.T, id, checkpoint string, code types.Code) {
	t.Helper()
	was := ok(h.sandbox(id))(t)
	if _, err := h.restore(id, checkpoint); client.CodeOf(err) != code {
		t.Errorf("restore: %v", err)
	}
	if _, err := h.fork(checkpoint); client.CodeOf(err) != code {
		t.Errorf("fork: %v", err)
	}
	if now := ok(h.sandbox(id))(t); now.Head != was.Head || now.Generation != was.Generation || now.State != was.State {
		t.Errorf("the refused restore left %+v", now)
	}
}

// TestDamagedLayer damages a durable checkpoint on disk.
func TestDamagedLayer(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, layer string) (repair func())
	}{
		{"a flipped bit", func(t *testing.T, layer string) func() {
			file := filepath.Join(layer, "fs", "w", "a")
			flip := func() {
				st, err := os.Stat(file)
				done(t, err)
				raw, err := os.ReadFile(file)
				done(t, err)
				raw[1] ^= 0x10
				f, err := os.OpenFile(file, os.O_WRONLY, 0)
				done(t, err)
				_, err = f.Write(raw)
				done(t, err)
				done(t, f.Close())
				// As a disk does it: without telling the file system.
				done(t, os.Chtimes(file, st.ModTime(), st.ModTime()))
			}
			flip()
			return flip
		}},
		{"a file more", func(t *testing.T, layer string) func() {
			file := filepath.Join(layer, "fs", "w", "more")
			done(t, os.WriteFile(file, nil, 0o644))
			return func() { done(t, os.Remove(file)) }
		}},
		{"a file less", func(t *testing.T, layer string) func() {
			file, aside := filepath.Join(layer, "fs", "w", "b"), filepath.Join(layer, "b")
			done(t, os.Rename(file, aside))
			return func() { done(t, os.Rename(aside, file)) }
		}},
		{"another mode", func(t *testing.T, layer string) func() {
			file := filepath.Join(layer, "fs", "w", "b")
			done(t, os.Chmod(file, 0o4755))
			return func() { done(t, os.Chmod(file, 0o644)) }
		}},
		{"another link", func(t *testing.T, layer string) func() {
			file := filepath.Join(layer, "fs", "w", "d", "link")
			aside := filepath.Join(layer, "link")
			done(t, os.Rename(file, aside))
			done(t, os.Symlink("elsewhere", file))
			return func() { done(t, os.Rename(aside, file)) }
		}},
		{"a damaged manifest", func(t *testing.T, layer string) func() {
			file := filepath.Join(layer, "manifest")
			raw, err := os.ReadFile(file)
			done(t, err)
			done(t, os.WriteFile(file, bytes.ToUpper(raw), 0o600))
			return func() { done(t, os.WriteFile(file, raw, 0o600)) }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h.t = t
			sb := ok(h.create(types.CreateSandbox{}))(t)
			ok(h.sh(sb.Id, putState(before, after)))(t)
			cp := ok(h.durable(sb.Id))(t)
			ok(h.sh(sb.Id, putState(after, before)))(t)
			layer := h.layerWith(t, "w/a", before)
			times := timesOf(t, filepath.Join(layer, "fs", "w"), filepath.Join(layer, "fs", "w", "d"))
			repair := c.damage(t, layer)
			if _, err := h.verify(cp.Id); client.CodeOf(err) != types.CheckpointCorrupt {
				t.Errorf("verify: %v", err)
			}
			if got := ok(h.getCheckpoint(cp.Id))(t); got.Durability != types.DurabilityDamaged {
				t.Errorf("the checkpoint is %s", got.Durability)
			}
			h.refused(t, sb.Id, cp.Id, types.CheckpointCorrupt)
			if got := ok(h.stateOf(sb.Id))(t); got != after && c.name != "a file more" {
				t.Errorf("the sandbox has %s", got)
			}
			repair()
			times()
			ok(h.verify(cp.Id))(t)
			ok(h.restore(sb.Id, cp.Id))(t)
			if got := ok(h.stateOf(sb.Id))(t); got != before {
				t.Errorf("restored %s", got)
			}
			h.deleteAll()
			h.settle("the layers are swept", func() bool {
				left, err := h.layers()
				return err == nil && len(left) == len(h.image.Layers)
			})
		})
	}
	h.t = t
}

// timesOf remembers the times of directories; it returns what puts them back.
func timesOf(t *testing.T, dirs ...string) (restore func()) {
	t.Helper()
	var undo []func()
	for _, d := range dirs {
		st, err := os.Stat(d)
		done(t, err)
		undo = append(undo, func() { done(t, os.Chtimes(d, time.Time{}, st.ModTime())) })
	}
	return func() {
		for _, u := range undo {
			u()
		}
	}
}

// layerWith finds the sealed layer that has a file. The damage done to it
// reaches only what the disk would show: the sandbox's own files are above it.
func (h *host) layerWith(t *testing.T, path, content string) string {
	t.Helper()
	all, err := h.layers()
	done(t, err)
	for _, l := range all {
		dir := filepath.Join(h.poolDir(), "l", l)
		raw, err := os.ReadFile(filepath.Join(dir, "fs", path))
		if err != nil || string(raw) != content+"\n" {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, "manifest")); err == nil {
			return dir
		}
	}
	t.Fatalf("no sealed layer has %s", path)
	return ""
}
