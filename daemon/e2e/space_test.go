package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cairn/api/client"
	"cairn/api/types"

	"golang.org/x/sys/unix"
)

// TestDiskFull fills the pool's file system: a checkpoint is refused, the
// sandbox goes on as it was, and with room again it works.
func TestDiskFull(t *testing.T) {
	for name, makePool := range map[string]func(*testing.T) string{
		"ext4": func(t *testing.T) string { return ext4(t, "400M") },
		"xfs":  func(t *testing.T) string { return xfs(t, "400M") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, options{pool: makePool(t)})
			t.Run("switch", func(t *testing.T) {
				h.t = t
				full(t, h, func(types.Sandbox) {})
			})
			t.Run("capture", func(t *testing.T) {
				h.t = t
				full(t, h, func(sb types.Sandbox) {
					ok(h.sh(sb.Id, "head -c 4M /dev/urandom >/large"))(t)
					h.play(t, sb.Id, "writer", "/held")
				})
			})
			h.t = t
		})
	}
}

// full fills the disk and empties it again. Where files are shared by reflinks, a
// checkpoint may need no more than the file system keeps in reserve.
func full(t *testing.T, h *host, prepare func(types.Sandbox)) {
	t.Helper()
	sb := ok(h.create(types.CreateSandbox{}))(t)
	ok(h.sh(sb.Id, putState(before, after)))(t)
	cp := ok(h.durable(sb.Id))(t)
	ok(h.sh(sb.Id, putState(after, before)))(t)
	prepare(sb)
	filler := filepath.Join(filepath.Dir(h.poolDir()), "filler")
	fill(t, filler)
	taken, err := h.durable(sb.Id)
	if client.CodeOf(err) != types.NoSpace && (err != nil || !h.reflinks(t)) {
		t.Errorf("a checkpoint without space: %v, captured by %q", err, taken.Method)
	}
	if _, err := h.restore(sb.Id, cp.Id); err != nil && client.CodeOf(err) != types.NoSpace {
		t.Errorf("a restore without space: %v", err)
	} else if err == nil {
		t.Log("a restore needs no space")
	}
	if _, err := h.create(types.CreateSandbox{}); err != nil && client.CodeOf(err) != types.NoSpace {
		t.Errorf("create without space: %v", err)
	}
	if got, err := h.stateOf(sb.Id); err != nil && client.CodeOf(err) != types.NoSpace && client.CodeOf(err) != types.ResourceExhausted {
		t.Errorf("the full sandbox: %s, %v", got, err)
	}
	done(t, os.Remove(filler))
	got := ok(h.stateOf(sb.Id))(t)
	now := ok(h.durable(sb.Id))(t)
	ok(h.verify(now.Id))(t)
	if in := ok(h.stateIn(now.Id))(t); in != got {
		t.Errorf("the sandbox has %s, its checkpoint %s", got, in)
	}
	ok(h.verify(cp.Id))(t)
	ok(h.restore(sb.Id, cp.Id))(t)
	if got := ok(h.stateOf(sb.Id))(t); got != before {
		t.Errorf("restored %s", got)
	}
	h.deleteAll()
}

func (h *host) reflinks(t *testing.T) bool {
	t.Helper()
	ctx, cancel := request()
	defer cancel()
	return ok(client.Get[types.Info](h.client.GetInfo(ctx)))(t).Features["reflink"] == "yes"
}

// fill takes all the space of a file system, to the last block.
func fill(t *testing.T, filler string) {
	t.Helper()
	f, err := os.Create(filler)
	done(t, err)
	defer f.Close()
	var end int64
	for step := int64(64 << 20); step >= 4096; {
		if err := unix.Fallocate(int(f.Fd()), 0, end, step); err != nil {
			step /= 2
			continue
		}
		end += step
	}
	done(t, f.Sync())
}

// TestDiskLimit writes more in a sandbox than it may.
func TestDiskLimit(t *testing.T) {
	for name, makePool := range map[string]func(*testing.T) string{
		"ext4": func(*testing.T) string { return "" },
		"xfs":  func(t *testing.T) string { return xfs(t, "1G") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, options{pool: makePool(t)})
			ctx, cancel := request()
			defer cancel()
			info := ok(client.Get[types.Info](h.client.GetInfo(ctx)))(t)
			sb := ok(h.create(types.CreateSandbox{Resources: &types.Resources{DiskBytes: ptr(int64(16 << 20))}}))(t)
			ok(h.sh(sb.Id, putState(before, after)))(t)
			cp := ok(h.checkpoint(sb.Id))(t)
			if strings.HasPrefix(info.Features["disk_limit"], "kernel") {
				r := ok(h.exec(sb.Id, types.Exec{Command: []string{"dd", "if=/dev/zero", "of=/w/large", "bs=1M", "count=64"}}))(t)
				if r.ExitCode == 0 || !strings.Contains(r.Stderr, "No space left") && !strings.Contains(r.Stderr, "quota exceeded") {
					t.Errorf("writing over the limit ended with %d: %s", r.ExitCode, r.Stderr)
				}
				ok(h.sh(sb.Id, "rm /w/large && echo room >/w/a"))(t)
				return
			}
			ok(h.background(sb.Id, "dd", "if=/dev/zero", "of=/w/large", "bs=1M", "count=64"))(t)
			var got types.Sandbox
			eventually(t, "the sandbox is paused", func() bool {
				got = ok(h.sandbox(sb.Id))(t)
				return got.State == types.SandboxStatePaused
			})
			if !strings.Contains(got.Reason, "disk limit") {
				t.Errorf("the reason is %q", got.Reason)
			}
			ctx, cancel = request()
			defer cancel()
			done(t, client.Done(h.client.DeleteFile(ctx, sb.Id, &types.DeleteFileParams{Path: "/w/large"})))
			ok(h.restore(sb.Id, cp.Id))(t)
			if got := ok(h.stateOf(sb.Id))(t); got != before {
				t.Errorf("restored %s", got)
			}
		})
	}
}
