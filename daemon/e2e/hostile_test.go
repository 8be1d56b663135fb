package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cairn/api/client"
	"cairn/api/types"
)

// TestControlFilesReplaced has root inside replace what the daemon uses to
// control the sandbox. Nothing outside is touched, the caller gets a clear
// answer, and killing the stem brings back a sound one.
func TestControlFilesReplaced(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	other := ok(h.create(types.CreateSandbox{}))(t)
	socket := filepath.Join(h.root, "run", "cairn.sock")
	for _, c := range []struct{ name, script string }{
		{"socket is a link to the daemon's", "rm /run/cairn/stem.sock; ln -s " + socket + " /run/cairn/stem.sock"},
		{"socket is a fifo", "rm /run/cairn/stem.sock; mkfifo /run/cairn/stem.sock"},
		{"socket is a directory", "rm /run/cairn/stem.sock; mkdir /run/cairn/stem.sock"},
		{"socket is gone", "rm /run/cairn/stem.sock"},
		{"no stem is wanted", "touch /run/cairn/no-stem"},
		{"records are a link", "mv /run/cairn/p /run/cairn/q; ln -s " + h.root + " /run/cairn/p"},
		{"generation is a link", "rm /run/cairn/generation; ln -s ../container.json /run/cairn/generation"},
		{"generation is a full directory", "rm /run/cairn/generation; mkdir -p /run/cairn/generation/x"},
		{"generation is a fifo", "rm /run/cairn/generation; mkfifo /run/cairn/generation"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			h.t = t
			sb := ok(h.create(types.CreateSandbox{}))(t)
			ok(h.sh(sb.Id, putState(before, after)))(t)
			cp := ok(h.checkpoint(sb.Id))(t)
			ok(h.sh(sb.Id, putState(after, before)))(t)
			secret := h.secrets(t)
			// The script may cut off its own answer.
			if _, err := h.sh(sb.Id, c.script); err != nil {
				h.refusal(t, err)
			}
			if _, err := h.sh(sb.Id, "true"); err != nil {
				h.refusal(t, err)
			}
			ok(h.sh(other.Id, "true"))(t)
			// The files can be had and put back whatever the stem does.
			now := ok(h.checkpoint(sb.Id))(t)
			if got := ok(h.stateIn(now.Id))(t); got != after {
				t.Errorf("the checkpoint has %s", got)
			}
			res := ok(h.restore(sb.Id, cp.Id))(t)
			if got := ok(h.readFile(sb.Id, "/w/a"))(t); got != before+"\n" {
				t.Errorf("restored %q", got)
			}
			if got := generationOf(t, h.firstPID(t, sb.Id)); got != itoa(res.Generation)+"\n" {
				t.Errorf("the generation inside is %q", got)
			}
			if got := h.secrets(t); got != secret {
				t.Errorf("files of the host have changed: %s\nthey were %s", got, secret)
			}
			if got := ok(h.stateOf(sb.Id))(t); got != before {
				t.Errorf("the restored sandbox has %s", got)
			}
			child := ok(h.fork(now.Id))(t)
			if got := ok(h.stateOf(child.Id))(t); got != after {
				t.Errorf("the fork has %s", got)
			}
			h.crash()
			ok(h.sandbox(sb.Id))(t)
			done(t, h.remove(child.Id))
			done(t, h.remove(sb.Id))
		})
	}
	h.t = t
}

// generationOf reads what programs beside a process see as the generation.
func generationOf(t *testing.T, pid int) string {
	t.Helper()
	file := fmt.Sprintf("/proc/%d/root/run/cairn/generation", pid)
	st, err := os.Lstat(file)
	done(t, err)
	if !st.Mode().IsRegular() {
		t.Fatalf("the generation is a %s", st.Mode())
	}
	raw, err := os.ReadFile(file)
	done(t, err)
	return string(raw)
}

// refusal checks that a sandbox that spoilt its control files is blamed, and not
// the daemon.
func (h *host) refusal(t *testing.T, err error) {
	t.Helper()
	switch code := client.CodeOf(err); code {
	case types.Conflict, types.Unavailable, types.NotFound:
	default:
		if !strings.Contains(err.Error(), "ended with") {
			t.Errorf("a sandbox without a sound stem: %v (%s)", err, code)
		}
	}
}

// secrets is what of the host a sandbox's links pointed at.
func (h *host) secrets(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, slot := range h.names("pool", "s") {
		raw, err := os.ReadFile(filepath.Join(h.poolDir(), "s", slot, "container.json"))
		if err != nil {
			continue
		}
		// A restore may have given the sandbox another slot: what counts is that nobody
		// else has written into a record.
		var rec struct {
			Name   string `json:"name"`
			BootID string `json:"boot_id"`
		}
		if err := json.Unmarshal(raw, &rec); err != nil || rec.Name == "" || rec.BootID == "" {
			t.Errorf("the record of slot %s is %q", slot, raw)
		}
	}
	for _, n := range h.names() {
		b.WriteString(n + " ")
	}
	st, err := os.Lstat(filepath.Join(h.root, "run", "cairn.sock"))
	done(t, err)
	b.WriteString(st.Mode().String())
	return b.String()
}

// TestOutputReplaced has root inside put links where the daemon reads output.
func TestOutputReplaced(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	const secret = "of the host"
	file := filepath.Join(h.base, "secret")
	done(t, os.WriteFile(file, []byte(secret), 0o644))
	for _, c := range []struct{ name, script string }{
		{"a link to a file", "ln -s " + file + " $out"},
		{"a link out of the directory", "ln -s ../../../container.json $out"},
		{"a fifo", "mkfifo $out"},
		{"a directory", "mkdir $out"},
		{"a link for the directory", "rmdir ${out%/*}; ln -s " + h.base + " ${out%/*}; ln -s secret ${out%/*}/stdout 2>/dev/null; true"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			h.t = t
			sb := ok(h.create(types.CreateSandbox{}))(t)
			p := h.play(t, sb.Id, "idle", "/tmp/idle")
			out := "/run/cairn/p/" + p.Id + "/stdout"
			ok(h.sh(sb.Id, "out="+out+"; rm -r ${out%/*}/*; "+c.script))(t)
			got, err := h.output(sb.Id, p.Id)
			if err != nil {
				h.refusal(t, err)
			}
			if strings.Contains(got, secret) || strings.Contains(got, "{") {
				t.Errorf("the output is %q", got)
			}
			ok(h.sh(sb.Id, "true"))(t)
			done(t, h.remove(sb.Id))
			if raw, err := os.ReadFile(file); err != nil || string(raw) != secret {
				t.Errorf("the host's file has %q, %v", raw, err)
			}
		})
	}
	h.t = t
}

// TestStemKilled has root inside kill its stem: another one takes over.
func TestStemKilled(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	sb := ok(h.create(types.CreateSandbox{}))(t)
	ok(h.sh(sb.Id, putState(before, after)))(t)
	p := h.play(t, sb.Id, "idle", "/tmp/idle")
	stem := ok(h.sh(sb.Id, "echo $PPID"))(t)
	if _, err := h.sh(sb.Id, "kill -9 "+stem); err != nil {
		h.refusal(t, err)
	}
	eventually(t, "another stem answers", func() bool {
		got, err := h.sh(sb.Id, "echo $PPID")
		return err == nil && got != stem
	})
	if got := ok(h.process(sb.Id, p.Id))(t); got.State == types.ProcessStateRunning && inner(h.hostPID(t, sb.Id, got.Pid)) != got.Pid {
		t.Error("a process that is gone is said to run")
	}
	if got := ok(h.stateOf(sb.Id))(t); got != before {
		t.Errorf("the files are those of %s", got)
	}
	cp := ok(h.durable(sb.Id))(t)
	ok(h.restore(sb.Id, cp.Id))(t)
	ok(h.verify(cp.Id))(t)
	if got := ok(h.stateOf(sb.Id))(t); got != before {
		t.Errorf("restored %s", got)
	}
}

// TestForkBomb restores a sandbox in which processes multiply.
func TestForkBomb(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	sb := ok(h.create(types.CreateSandbox{Resources: &types.Resources{Pids: ptr(int64(64))}}))(t)
	ok(h.sh(sb.Id, putState(before, after)))(t)
	cp := ok(h.checkpoint(sb.Id))(t)
	pid := h.firstPID(t, sb.Id)
	ok(h.background(sb.Id, "bash", "-c", "b() { b | b & }; while :; do b; done"))(t)
	eventually(t, "the processes are many", func() bool {
		ctx, cancel := request()
		defer cancel()
		u := ok(client.Get[types.Usage](h.client.GetUsage(ctx, sb.Id)))(t)
		return u.Pids > 40
	})
	ok(h.restore(sb.Id, cp.Id))(t)
	if inner(pid) != 1 {
		t.Error("the first process is another one")
	}
	if got := ok(h.stateOf(sb.Id))(t); got != before {
		t.Errorf("restored %s", got)
	}
	if got := ok(h.sh(sb.Id, "ls -d /proc/[0-9]* | wc -l"))(t); len(got) > 1 {
		t.Errorf("%s processes are left", got)
	}
}
