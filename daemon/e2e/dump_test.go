package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"cairn/api/client"
	"cairn/api/types"
)

// counter is a process that keeps a number in its memory: it adds one for each line.
func (h *host) counter(t fataler, id string) types.Process {
	t.Helper()
	p := ok(h.background(id, "sh", "-c", "n=0; while read -r l; do n=$((n+1)); echo $n; done"))(t)
	h.counts(t, id, p.Id, 1)
	return p
}

// counts has the process count once more, and checks the number.
func (h *host) counts(t fataler, id, proc string, want int) {
	t.Helper()
	lines := len(strings.Fields(ok(h.output(id, proc))(t)))
	done(t, h.stdin(id, proc, "\n"))
	var said []string
	eventually(t, "the process counts", func() bool {
		said = strings.Fields(ok(h.output(id, proc))(t))
		return len(said) == lines+1
	})
	if got := said[lines]; got != itoa(int64(want)) {
		t.Fatalf("the process counts %s, expected %d", got, want)
	}
}

// TestProcessesComeBack restores and forks processes, again and again, through restarts
// of the daemon.
func TestProcessesComeBack(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{warm: 2})
	sb := ok(h.create(types.CreateSandbox{Command: ptr([]string{"sleep", "infinity"})}))(t)
	ok(h.sh(sb.Id, putState(before, after)))(t)
	p := h.counter(t, sb.Id)
	cp := ok(h.dump(sb.Id))(t)
	if !cp.Processes || cp.Reason != "" || cp.Timings.FreezeMs <= 0 || cp.Sizes.ProcessBytes == 0 {
		t.Errorf("the checkpoint: %+v", cp)
	}
	h.counts(t, sb.Id, p.Id, 2)
	ok(h.sh(sb.Id, putState(after, before)))(t)
	for round := range 3 {
		res := ok(h.revive(sb.Id, cp.Id))(t)
		if !res.Processes || res.Undo == "" && round == 0 || res.Generation != int64(round)+2 {
			t.Errorf("the restore: %+v", res)
		}
		if got := ok(h.stateOf(sb.Id))(t); got != before {
			t.Errorf("restored %s", got)
		}
		h.counts(t, sb.Id, p.Id, 2)
	}
	child := ok(h.forkDump(cp.Id))(t)
	h.restart()
	h.counts(t, sb.Id, p.Id, 3)
	h.counts(t, child.Id, p.Id, 2)
	h.counts(t, child.Id, p.Id, 3)
	if got := ok(h.sh(child.Id, "cat /run/cairn/generation; hostname"))(t); got != itoa(child.Generation)+"\n"+child.Hostname || child.Generation != cp.Generation+1 {
		t.Errorf("the fork reads %q", got)
	}
	// A checkpoint of the fork, and another generation from that.
	again := ok(h.dump(child.Id))(t)
	done(t, h.remove(sb.Id))
	done(t, h.deleteCheckpoint(cp.Id))
	grandchild := ok(h.forkDump(again.Id))(t)
	h.counts(t, grandchild.Id, p.Id, 4)
	// The main command came along, and was not started again.
	mains := slices.DeleteFunc(ok(h.processesOf(grandchild.Id))(t), func(p types.Process) bool { return !p.Main })
	if len(mains) != 1 || mains[0].State != types.ProcessStateRunning {
		t.Errorf("main processes of the fork: %+v", mains)
	}
	// What ends is seen to end.
	done(t, h.signal(grandchild.Id, p.Id, "TERM"))
	if got := ok(h.waitProcess(grandchild.Id, p.Id))(t); got.State != types.ProcessStateExited || got.Signal != "SIGTERM" {
		t.Errorf("the end: %+v", got)
	}
	// It is brought back to life by a restore.
	ok(h.revive(grandchild.Id, again.Id))(t)
	h.counts(t, grandchild.Id, p.Id, 4)
}

// TestHibernate stops sandboxes with their processes, and brings them back.
func TestHibernate(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	sb := ok(h.create(types.CreateSandbox{}))(t)
	ok(h.sh(sb.Id, putState(before, after)))(t)
	p := h.counter(t, sb.Id)
	cp := ok(h.sleep(sb.Id))(t)
	if err := h.deleteCheckpoint(cp.Id); client.CodeOf(err) != types.InUse {
		t.Errorf("its processes would be lost: %v", err)
	}
	h.crash()
	sb = ok(h.sandbox(sb.Id))(t)
	if sb.State != types.SandboxStateStopped || sb.Asleep != cp.Id || sb.Reason != "" {
		t.Errorf("asleep: %+v", sb)
	}
	if got := ok(h.process(sb.Id, p.Id))(t); got.State != types.ProcessStateAsleep {
		t.Errorf("the process is %s", got.State)
	}
	ok(h.resume(sb.Id))(t)
	h.counts(t, sb.Id, p.Id, 2)
	ok(h.pause(sb.Id))(t)
	paused := ok(h.dump(sb.Id))(t)
	if sb := ok(h.sandbox(sb.Id))(t); sb.State != types.SandboxStatePaused {
		t.Errorf("the sandbox is %s", sb.State)
	}
	ok(h.sleep(sb.Id))(t)
	// A stopped sandbox can be put to another past; its processes come with the resume.
	if res := ok(h.revive(sb.Id, cp.Id))(t); res.State != types.SandboxStateStopped || res.Asleep != cp.Id {
		t.Errorf("restored while asleep: %+v", res)
	}
	ok(h.resume(sb.Id))(t)
	h.counts(t, sb.Id, p.Id, 2)
	ok(h.revive(sb.Id, paused.Id))(t)
	h.counts(t, sb.Id, p.Id, 3)
	ok(h.sleep(sb.Id))(t)
	ok(h.restore(sb.Id, cp.Id))(t)
	if got := ok(h.process(sb.Id, p.Id))(t); got.State != types.ProcessStateLost {
		t.Errorf("a process that will not come back is %s", got.State)
	}
	if sb := ok(h.resume(sb.Id))(t); sb.Asleep != "" {
		t.Errorf("resumed without processes: %+v", sb)
	}
	if got := ok(h.stateOf(sb.Id))(t); got != before {
		t.Errorf("restored %s", got)
	}
}

// TestStreamsSurvive has a client attached to a terminal, and one that follows an output,
// through checkpoints and restores.
func TestStreamsSurvive(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	sb := ok(h.create(types.CreateSandbox{}))(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	shell := ok(client.Get[types.Process](h.client.Exec(ctx, sb.Id, nil, types.Exec{
		Command: []string{"bash"}, Background: ptr(true), Tty: &types.TerminalSize{Rows: 24, Cols: 80},
	})))(t)
	p := h.counter(t, sb.Id)
	a := ok(h.client.Attach(ctx, sb.Id, shell.Id, nil))(t)
	defer a.Close()
	says := func(want string) {
		t.Helper()
		var seen []byte
		for !bytes.Contains(seen, []byte(want)) {
			e, err := a.Next(ctx)
			if err != nil || e.Exit != nil {
				t.Fatalf("%q is missing in %q: %+v, %v", want, seen, e, err)
			}
			seen = append(seen, e.Output...)
		}
	}
	var followed syncBuffer
	var follower sync.WaitGroup
	follower.Go(func() {
		for eof := false; !eof; {
			o, err := client.Get[types.Output](h.client.GetProcessOutput(ctx, sb.Id, p.Id, &types.GetProcessOutputParams{
				Offset: ptr(int64(len(followed.String()))), Wait: ptr(30000),
			}))
			if err != nil {
				followed.add([]byte(err.Error()))
				return
			}
			followed.add([]byte(o.Data))
			eof = o.Eof
		}
	})
	done(t, a.Write(ctx, []byte("x=kept; echo $((40+1))\n")))
	says("41")
	cp := ok(h.dump(sb.Id))(t)
	done(t, a.Write(ctx, []byte("x=lost; echo $((41+1))\n")))
	says("42")
	h.counts(t, sb.Id, p.Id, 2)
	for range 2 {
		ok(h.revive(sb.Id, cp.Id))(t)
		done(t, a.Write(ctx, []byte("echo is-$x-now\n")))
		says("is-kept-now")
		done(t, a.Write(ctx, []byte("x=lost\n")))
		h.counts(t, sb.Id, p.Id, 2)
	}
	eventually(t, "the follower has all of it", func() bool { return followed.String() == "1\n2\n2\n2\n" })
	done(t, h.signal(sb.Id, p.Id, "KILL"))
	follower.Wait()
	done(t, a.Write(ctx, []byte("exit 7\n")))
	for {
		e, err := a.Next(ctx)
		done(t, err)
		if e.Exit != nil {
			if e.Exit.ExitCode != 7 {
				t.Errorf("the shell's end: %+v", e.Exit)
			}
			break
		}
	}
	// In a fork the terminal is attached anew, with what it showed.
	child := ok(h.forkDump(cp.Id))(t)
	b := ok(h.client.Attach(ctx, child.Id, shell.Id, nil))(t)
	defer b.Close()
	a = b
	says("41")
	done(t, a.Write(ctx, []byte("echo is-$x-here\n")))
	says("is-kept-here")
}

// syncBuffer is bytes that one goroutine adds to and another reads.
type syncBuffer struct {
	mu sync.Mutex
	b  []byte
}

func (s *syncBuffer) add(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b = append(s.b, b...)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.b)
}

// rightsOf reads from the host what a process may do.
func (h *host) rightsOf(t fataler, id string, pid int) (rights []string) {
	t.Helper()
	host := h.hostPID(t, id, pid)
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", host))
	done(t, err)
	for line := range strings.SplitSeq(string(raw), "\n") {
		name, _, _ := strings.Cut(line, ":")
		if slices.Contains([]string{"Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters"}, name) {
			rights = append(rights, line)
		}
	}
	first := h.firstPID(t, id)
	for _, ns := range []string{"user", "pid", "mnt", "net", "ipc", "uts", "cgroup"} {
		own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", host, ns))
		done(t, err)
		of1, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", first, ns))
		done(t, err)
		rights = append(rights, fmt.Sprintf("%s namespace of its sandbox: %v", ns, own == of1))
	}
	// Ids as the host sees them depend on the sandbox; as PID 1's range maps them they do not.
	base := strings.Fields(ok(readString(fmt.Sprintf("/proc/%d/uid_map", first)))(t))
	for line := range strings.SplitSeq(string(raw), "\n") {
		if name, ids, _ := strings.Cut(line, ":"); name == "Uid" || name == "Gid" {
			for _, f := range strings.Fields(ids) {
				rights = append(rights, fmt.Sprintf("%s %d", name, number(t, f)-number(t, base[1])))
			}
		}
	}
	group := ok(readString(fmt.Sprintf("/proc/%d/cgroup", host)))(t)
	of1 := ok(readString(fmt.Sprintf("/proc/%d/cgroup", first)))(t)
	return append(rights, fmt.Sprintf("control groups of its sandbox: %v", group == of1))
}

func readString(path string) (string, error) {
	b, err := os.ReadFile(path)
	return string(b), err
}

func number(t fataler, s string) (n int64) {
	t.Helper()
	_, err := fmt.Sscan(s, &n)
	done(t, err)
	return n
}

// TestRightsOfRestored looks from the host at what restored processes may do: what they
// might before, and nothing of the daemon's.
func TestRightsOfRestored(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	sb := ok(h.create(types.CreateSandbox{}))(t)
	ctx, cancel := request()
	defer cancel()
	procs := []types.Process{h.counter(t, sb.Id)}
	procs = append(procs, ok(client.Get[types.Process](h.client.Exec(ctx, sb.Id, nil, types.Exec{
		Command: []string{"sleep", "infinity"}, Background: ptr(true), User: ptr("1000:1001"),
	})))(t))
	cp := ok(h.dump(sb.Id))(t)
	was := map[string][]string{}
	for _, p := range procs {
		was[p.Id] = h.rightsOf(t, sb.Id, p.Pid)
		if !slices.Contains(was[p.Id], "NoNewPrivs:\t1") || !slices.Contains(was[p.Id], "Seccomp:\t2") || slices.Contains(was[p.Id], "user namespace of its sandbox: false") {
			t.Fatalf("a process of the sandbox: %q", was[p.Id])
		}
	}
	ok(h.revive(sb.Id, cp.Id))(t)
	child := ok(h.forkDump(cp.Id))(t)
	for _, id := range []string{sb.Id, child.Id} {
		for _, p := range procs {
			if now := h.rightsOf(t, id, p.Pid); !slices.Equal(now, was[p.Id]) {
				t.Errorf("%s: before %q, now %q", p.Command, was[p.Id], now)
			}
		}
	}
}

// TestUndumpable asks for the processes where one of them cannot be had.
func TestUndumpable(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	sb := ok(h.create(types.CreateSandbox{}))(t)
	p := h.counter(t, sb.Id)
	odd := h.play(t, sb.Id, "packets", "/none")
	for _, stop := range []bool{false, true} {
		_, err := h.checkpointAs(sb.Id, types.CreateCheckpoint{Processes: ptr(types.Include), Stop: &stop})
		if client.CodeOf(err) != types.Unsupported || !strings.Contains(err.Error(), "pipe") || !strings.Contains(err.Error(), "agent") {
			t.Errorf("include: %v", err)
		}
	}
	if _, err := h.checkpointAs(sb.Id, types.CreateCheckpoint{Stop: ptr(true)}); client.CodeOf(err) != types.Unsupported {
		t.Errorf("a stop would lose the processes: %v", err)
	}
	h.counts(t, sb.Id, p.Id, 2)
	files := ok(h.checkpointAs(sb.Id, types.CreateCheckpoint{}))(t)
	if files.Processes || !strings.Contains(files.Reason, "pipe") {
		t.Errorf("auto: %+v", files)
	}
	if _, err := h.revive(sb.Id, files.Id); client.CodeOf(err) != types.Unsupported {
		t.Errorf("restore what is not there: %v", err)
	}
	if _, err := h.forkDump(files.Id); client.CodeOf(err) != types.Unsupported {
		t.Errorf("fork what is not there: %v", err)
	}
	h.counts(t, sb.Id, p.Id, 3)
	// Once it is gone, the others can be had: none lost the root that it stands on.
	done(t, h.signal(sb.Id, odd.Id, "KILL"))
	ok(h.waitProcess(sb.Id, odd.Id))(t)
	cp := ok(h.checkpointAs(sb.Id, types.CreateCheckpoint{}))(t)
	if !cp.Processes {
		t.Errorf("auto: %+v", cp)
	}
	done(t, h.signal(sb.Id, p.Id, "KILL"))
	ok(h.waitProcess(sb.Id, p.Id))(t)
	ok(h.sh(sb.Id, "echo more >/more"))(t)
	if idle := ok(h.checkpointAs(sb.Id, types.CreateCheckpoint{}))(t); idle.Processes || idle.Reason != "no process runs" || idle.Method != types.Switch {
		t.Errorf("with nothing to include: %+v", idle)
	}
	if _, err := h.forkAs(cp.Id, types.Fork{Processes: ptr(types.Include), Command: ptr([]string{"true"})}); client.CodeOf(err) != types.InvalidArgument {
		t.Errorf("a command beside restored processes: %v", err)
	}
	// After a switch below it, a process can't be found by its path any more: that is said.
	p = h.counter(t, sb.Id)
	ok(h.sh(sb.Id, "echo much >/more"))(t)
	if plain := ok(h.checkpoint(sb.Id))(t); plain.Method != types.Switch {
		t.Errorf("files alone: %+v", plain)
	}
	if _, err := h.dump(sb.Id); client.CodeOf(err) != types.Unsupported || !strings.Contains(err.Error(), "start the process again") {
		t.Errorf("a process on a root that is gone: %v", err)
	}
	h.counts(t, sb.Id, p.Id, 2)
}

// TestNoCRIU runs a daemon that has none.
func TestNoCRIU(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{without: "cairn-criu"})
	ctx, cancel := request()
	defer cancel()
	if f := ok(client.Get[types.Info](h.client.GetInfo(ctx)))(t).Features; f["processes"] != "no" || !strings.Contains(f["processes_lack"], "missing") {
		t.Errorf("features: %v", f)
	}
	sb := ok(h.create(types.CreateSandbox{}))(t)
	p := h.counter(t, sb.Id)
	if _, err := h.dump(sb.Id); client.CodeOf(err) != types.Unsupported {
		t.Errorf("include: %v", err)
	}
	if cp := ok(h.checkpointAs(sb.Id, types.CreateCheckpoint{}))(t); cp.Processes || !strings.Contains(cp.Reason, "missing") {
		t.Errorf("auto: %+v", cp)
	}
	h.counts(t, sb.Id, p.Id, 2)
}

// TestUpgrade brings processes back under a daemon that has another cairn-init: they need
// the one that they were started by.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	h := bareHost(t, options{without: "cairn-init"})
	program := ok(os.ReadFile(filepath.Join(thePrograms().bin, "cairn-init")))(t)
	install := func(more string) {
		t.Helper()
		done(t, os.WriteFile(filepath.Join(h.ownBinaries(thePrograms().bin), "cairn-init"), append(program, more...), 0o755))
	}
	install("")
	h.start()
	h.image = ok(h.importImage())(t)
	sb := ok(h.create(types.CreateSandbox{}))(t)
	p := h.counter(t, sb.Id)
	cp := ok(h.dump(sb.Id))(t)
	asleep := ok(h.create(types.CreateSandbox{}))(t)
	q := h.counter(t, asleep.Id)
	ok(h.sleep(asleep.Id))(t)
	h.stop()
	done(t, os.Remove(filepath.Join(h.base, "bin", "cairn-init")))
	install("upgraded")
	h.start()
	ok(h.resume(asleep.Id))(t)
	h.counts(t, asleep.Id, q.Id, 2)
	ok(h.revive(sb.Id, cp.Id))(t)
	h.counts(t, sb.Id, p.Id, 2)
	child := ok(h.forkDump(cp.Id))(t)
	h.counts(t, child.Id, p.Id, 2)
	// A sandbox with the new one, too, is put back: it gets another container.
	fresh := ok(h.fork(cp.Id))(t)
	if res := ok(h.revive(fresh.Id, cp.Id))(t); res.State != types.SandboxStateRunning || !res.Processes {
		t.Errorf("restored across the upgrade: %+v", res)
	}
	h.counts(t, fresh.Id, p.Id, 2)
}

// TestAlteredImages changes images on disk: they are refused, and nothing has happened.
func TestAlteredImages(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	sb := ok(h.create(types.CreateSandbox{}))(t)
	p := h.counter(t, sb.Id)
	cp := ok(h.checkpointAs(sb.Id, types.CreateCheckpoint{Wait: ptr(types.CreateCheckpointWait("durable"))}))(t)
	cores, err := filepath.Glob(filepath.Join(h.poolDir(), "l", "*", "fs", "core-*.img"))
	if err != nil || len(cores) == 0 {
		t.Fatalf("no images in the pool: %v", err)
	}
	raw, err := os.ReadFile(cores[0])
	done(t, err)
	raw[len(raw)/2] ^= 1
	done(t, os.WriteFile(cores[0], raw, 0o600))
	was := ok(h.sandbox(sb.Id))(t)
	if _, err := h.revive(sb.Id, cp.Id); client.CodeOf(err) != types.CheckpointCorrupt {
		t.Errorf("restore: %v", err)
	}
	if _, err := h.forkDump(cp.Id); client.CodeOf(err) != types.CheckpointCorrupt {
		t.Errorf("fork: %v", err)
	}
	h.counts(t, sb.Id, p.Id, 2)
	if now := ok(h.sandbox(sb.Id))(t); now.State != was.State || now.Generation != was.Generation {
		t.Errorf("the refused restore left %+v", now)
	}
	if _, err := h.verify(cp.Id); client.CodeOf(err) != types.CheckpointCorrupt {
		t.Errorf("verify: %v", err)
	}
}

// TestRestoreFails gives a fork too little memory for what is restored: it is not made,
// and the checkpoint serves on. In place the sandbox is left stopped, with its files.
func TestRestoreFails(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	sb := ok(h.create(types.CreateSandbox{}))(t)
	ok(h.sh(sb.Id, putState(before, after)))(t)
	p := h.play(t, sb.Id, "ballast", "/none")
	cp := ok(h.dump(sb.Id))(t)
	res := ok(h.forkAs(cp.Id, types.Fork{Processes: ptr(types.Include), Resources: &types.Resources{MemoryBytes: ptr(int64(24 << 20))}}))(t)
	if len(res.Items) != 1 || res.Items[0].Error == nil {
		t.Fatalf("a fork that does not fit: %+v", res)
	}
	if list := ok(h.sandboxes())(t); len(list) != 1 {
		t.Errorf("sandboxes after a fork that failed: %+v", list)
	}
	// A file that the process runs is taken away from its root: CRIU refuses halfway.
	hollow := ok(h.sleep(sb.Id))(t)
	ctx, cancel := request()
	defer cancel()
	done(t, client.Done(h.client.DeleteFile(ctx, sb.Id, &types.DeleteFileParams{Path: agentPath})))
	if _, err := h.resume(sb.Id); err == nil {
		t.Error("a process was resumed without its program")
	}
	if now := ok(h.sandbox(sb.Id))(t); now.State != types.SandboxStateStopped || now.Asleep != hollow.Id {
		t.Errorf("after a resume that failed: %+v", now)
	}
	ok(h.revive(sb.Id, cp.Id))(t)
	ok(h.resume(sb.Id))(t)
	done(t, h.stdin(sb.Id, p.Id, "x\n"))
	eventually(t, "the process has its memory", func() bool { return strings.HasSuffix(ok(h.output(sb.Id, p.Id))(t), "ok\n") })
	if got := ok(h.stateOf(sb.Id))(t); got != before {
		t.Errorf("the files are those of %s", got)
	}
}

// TestDumpWithoutSpace dumps more than the disk takes: the sandbox goes on.
func TestDumpWithoutSpace(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{pool: ext4(t, "400M")})
	sb := ok(h.create(types.CreateSandbox{}))(t)
	p := h.play(t, sb.Id, "ballast", "/none")
	filler := filepath.Join(filepath.Dir(h.poolDir()), "filler")
	fill(t, filler)
	for _, stop := range []bool{false, true} {
		if _, err := h.checkpointAs(sb.Id, types.CreateCheckpoint{Processes: ptr(types.Include), Stop: &stop}); client.CodeOf(err) != types.NoSpace {
			t.Errorf("a dump without space: %v", err)
		}
	}
	done(t, os.Remove(filler))
	done(t, h.stdin(sb.Id, p.Id, "x\n"))
	eventually(t, "the process goes on", func() bool { return strings.HasSuffix(ok(h.output(sb.Id, p.Id))(t), "ok\n") })
	cp := ok(h.dump(sb.Id))(t)
	ok(h.revive(sb.Id, cp.Id))(t)
}

// TestRestlessProcesses dumps processes that fork all the time, that are stopped, and
// that nobody has reaped.
func TestRestlessProcesses(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{})
	sb := ok(h.create(types.CreateSandbox{Resources: &types.Resources{Pids: ptr(int64(64))}}))(t)
	p := h.counter(t, sb.Id)
	zombie := ok(h.background(sb.Id, "sh", "-c", "true & exec sleep infinity"))(t)
	stopped := ok(h.background(sb.Id, "sleep", "infinity"))(t)
	done(t, h.signal(sb.Id, stopped.Id, "STOP"))
	forks := h.play(t, sb.Id, "forks", "/none")
	n := 1
	for range 5 {
		// One that is ending just then cannot be dumped; that is said, and no harm is done.
		cp, err := h.dump(sb.Id)
		if err != nil {
			if code := client.CodeOf(err); code != types.Unsupported && code != types.Timeout && code != types.Conflict && code != types.Internal {
				t.Errorf("dump: %v", err)
			}
			n++
			h.counts(t, sb.Id, p.Id, n)
			continue
		}
		n++
		h.counts(t, sb.Id, p.Id, n)
		ok(h.revive(sb.Id, cp.Id))(t)
		h.counts(t, sb.Id, p.Id, n)
	}
	done(t, h.signal(sb.Id, forks.Id, "KILL"))
	ok(h.waitProcess(sb.Id, forks.Id))(t)
	cp := ok(h.dump(sb.Id))(t)
	ok(h.revive(sb.Id, cp.Id))(t)
	h.counts(t, sb.Id, p.Id, n+1)
	if state := h.stateLetter(t, sb.Id, stopped.Pid); state != "T" {
		t.Errorf("the stopped process is in state %s", state)
	}
	if state := h.stateLetter(t, sb.Id, zombie.Pid); state != "S" {
		t.Errorf("the parent of a zombie is in state %s", state)
	}
	child := ok(h.forkDump(cp.Id))(t)
	if state := h.stateLetter(t, child.Id, stopped.Pid); state != "T" {
		t.Errorf("the stopped process is in state %s in a fork", state)
	}
}

// stateLetter is a process's state as ps shows it.
func (h *host) stateLetter(t fataler, id string, pid int) string {
	t.Helper()
	text := ok(readString(fmt.Sprintf("/proc/%d/stat", h.hostPID(t, id, pid))))(t)
	_, rest, _ := strings.Cut(text, ") ")
	return rest[:1]
}

// TestManyForks makes many children at once.
func TestManyForks(t *testing.T) {
	t.Parallel()
	h := newHost(t, options{warm: 4})
	sb := ok(h.create(types.CreateSandbox{}))(t)
	p := h.counter(t, sb.Id)
	cp := ok(h.dump(sb.Id))(t)
	const n = 16
	res := ok(h.forkAs(cp.Id, types.Fork{Count: ptr(n), Processes: ptr(types.Include)}))(t)
	for i, r := range res.Items {
		if r.Error != nil {
			t.Fatalf("child %d: %+v", i, r.Error)
		}
		for range i % 3 {
			done(t, h.stdin(r.Sandbox.Id, p.Id, "\n"))
		}
	}
	for i, r := range res.Items {
		want := 1 + i%3
		eventually(t, "a child counts for itself", func() bool {
			said := strings.Fields(ok(h.output(r.Sandbox.Id, p.Id))(t))
			return said[len(said)-1] == itoa(int64(want))
		})
	}
}
