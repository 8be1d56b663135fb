package workloads

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"cairn/api/client"
	"cairn/api/types"
)

// patience bounds every wait. It only decides how long a failing test takes.
const patience = 2 * time.Minute

func request() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

func ptr[T any](v T) *T { return &v }

// box is a sandbox, or a fork of one, in which a workload runs.
type box struct {
	t  testing.TB
	c  *client.Client
	id string
}

// newBox makes a sandbox that is deleted with its checkpoints when the test ends.
func newBox(t testing.TB) *box {
	t.Helper()
	c, err := client.Dial(client.Options{Socket: os.Getenv("WORKLOADS_SOCKET")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(c) })
	b := &box{t: t, c: c}
	ctx, cancel := request()
	defer cancel()
	sb := must(client.Get[types.Sandbox](c.CreateSandbox(ctx, nil, types.CreateSandbox{Image: imageName})))(t)
	b.own(sb.Id)
	return b
}

func (b *box) own(id string) {
	b.id = id
	b.t.Cleanup(func() {
		if b.t.Failed() {
			b.t.Logf("the daemon says of %s:\n%s", id, warnings())
		}
		b.remove()
	})
}

// remove deletes the sandbox, once.
func (b *box) remove() {
	b.t.Helper()
	if b.id == "" {
		return
	}
	ctx, cancel := request()
	defer cancel()
	if err := client.Done(b.c.DeleteSandbox(ctx, b.id)); err != nil {
		b.t.Errorf("delete: %v", err)
	}
	b.id = ""
}

// warnings are the last of the daemon's, in which CRIU's words are.
func warnings() string {
	data, err := os.ReadFile(os.Getenv("WORKLOADS_LOG"))
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-60):], "")
}

// must gives the value of a call that must succeed: must(f())(t).
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// eventually returns when cond holds, and fails when it does not come to.
func (b *box) eventually(what string, cond func() bool) {
	b.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			b.t.Fatalf("it did not come about that %s", what)
		}
	}
}

// run runs a command that may fail.
func (b *box) run(user string, command ...string) (types.ExecResult, error) {
	ctx, cancel := request()
	defer cancel()
	e := types.Exec{Command: command}
	if user != "" {
		e.User = &user
	}
	return client.Get[types.ExecResult](b.c.Exec(ctx, b.id, nil, e))
}

// as runs a script as the user, "" for root, and gives what it printed; it must succeed.
func (b *box) as(user, script string) string {
	b.t.Helper()
	r := must(b.run(user, "bash", "-c", script))(b.t)
	if r.ExitCode != 0 {
		b.t.Fatalf("%q ended with %d: %s%s", script, r.ExitCode, r.Stdout, r.Stderr)
	}
	return strings.TrimSpace(r.Stdout)
}

func (b *box) sh(script string) string { b.t.Helper(); return b.as("", script) }

// tries says whether a command succeeds.
func (b *box) tries(user string, command ...string) bool {
	r, err := b.run(user, command...)
	return err == nil && r.ExitCode == 0
}

// starts starts a process in the background and gives its id.
func (b *box) starts(e types.Exec) string {
	b.t.Helper()
	ctx, cancel := request()
	defer cancel()
	e.Background = ptr(true)
	if e.Tty == nil {
		e.OpenStdin = ptr(true)
	}
	return must(client.Get[types.Process](b.c.Exec(ctx, b.id, nil, e)))(b.t).Id
}

func (b *box) daemon(command ...string) string {
	b.t.Helper()
	return b.starts(types.Exec{Command: command})
}

// terminal starts a process at a terminal.
func (b *box) terminal(command ...string) string {
	b.t.Helper()
	return b.starts(types.Exec{
		Command: command, Tty: &types.TerminalSize{Rows: 24, Cols: 200},
		Env: &types.Env{"TERM": "xterm", "PS1": "$ ", "HOME": "/root", "HISTFILE": ""},
	})
}

func (b *box) process(exec string) types.Process {
	b.t.Helper()
	ctx, cancel := request()
	defer cancel()
	return must(client.Get[types.Process](b.c.GetProcess(ctx, b.id, exec)))(b.t)
}

func (b *box) types(exec, text string) {
	b.t.Helper()
	ctx, cancel := request()
	defer cancel()
	if err := client.Done(b.c.WriteStdinWithBody(ctx, b.id, exec, nil, "application/octet-stream", strings.NewReader(text))); err != nil {
		said, _ := b.output(exec, 0)
		b.t.Fatalf("%v; it has printed %q", err, said)
	}
}

// output gives what a process has printed from an offset on.
func (b *box) output(exec string, from int64) (text string, next int64) {
	b.t.Helper()
	for {
		ctx, cancel := request()
		o := must(client.Get[types.Output](b.c.GetProcessOutput(ctx, b.id, exec, &types.GetProcessOutputParams{Offset: &from})))(b.t)
		cancel()
		data := []byte(o.Data)
		if o.Encoding == types.Base64 {
			data = must(base64.StdEncoding.DecodeString(o.Data))(b.t)
		}
		if len(data) == 0 {
			return text, from
		}
		text, from = text+string(data), o.NextOffset
	}
}

// asks gives a process a line of input, and the first submatch of what it answers.
func (b *box) asks(exec, line, answer string) string {
	b.t.Helper()
	_, from := b.output(exec, 0)
	re := regexp.MustCompile(answer)
	b.types(exec, line+"\n")
	var found []string
	var text string
	defer func() {
		if found == nil {
			b.t.Logf("it has printed %q", text)
		}
	}()
	b.eventually(fmt.Sprintf("%s answers %q with %s", exec, line, answer), func() bool {
		text, _ = b.output(exec, from)
		found = re.FindStringSubmatch(text)
		return found != nil
	})
	return found[1]
}

func (b *box) tryCheckpoint() (types.Checkpoint, error) {
	ctx, cancel := request()
	defer cancel()
	return client.Get[types.Checkpoint](b.c.CreateCheckpoint(ctx, b.id, nil, types.CreateCheckpoint{Processes: ptr(types.Include)}))
}

func (b *box) checkpoint() types.Checkpoint {
	b.t.Helper()
	begin := time.Now()
	cp := must(b.tryCheckpoint())(b.t)
	b.t.Logf("checkpoint: %d ms, stop %.0f ms, memory and state %d MB", time.Since(begin).Milliseconds(), cp.Timings.FreezeMs, cp.Sizes.ProcessBytes>>20)
	if !cp.Processes {
		b.t.Fatalf("the checkpoint has no processes: %s", cp.Reason)
	}
	b.t.Cleanup(func() {
		ctx, cancel := request()
		defer cancel()
		if err := client.Done(b.c.DeleteCheckpoint(ctx, cp.Id)); err != nil {
			b.t.Errorf("delete checkpoint: %v", err)
		}
	})
	return cp
}

func (b *box) restore(checkpoint string) {
	b.t.Helper()
	ctx, cancel := request()
	defer cancel()
	begin := time.Now()
	r := must(client.Get[types.RestoredSandbox](b.c.RestoreSandbox(ctx, b.id, nil, types.Restore{Checkpoint: checkpoint, Processes: ptr(types.Include)})))(b.t)
	b.t.Logf("restore: %d ms", time.Since(begin).Milliseconds())
	if !r.Processes {
		b.t.Fatal("the restore left the processes out")
	}
}

// fork makes children from a checkpoint.
func (b *box) fork(checkpoint string, n int) []*box {
	b.t.Helper()
	ctx, cancel := request()
	defer cancel()
	begin := time.Now()
	r := must(client.Get[types.ForkResults](b.c.ForkCheckpoint(ctx, checkpoint, nil, types.Fork{Count: &n, Processes: ptr(types.Include)})))(b.t)
	b.t.Logf("fork to %d: %d ms", n, time.Since(begin).Milliseconds())
	var children []*box
	for _, f := range r.Items {
		if f.Error != nil {
			b.t.Error(&client.Error{Problem: *f.Error})
			continue
		}
		child := &box{t: b.t, c: b.c}
		child.own(f.Sandbox.Id)
		children = append(children, child)
	}
	if len(children) != n {
		b.t.Fatalf("%d children in the place of %d", len(children), n)
	}
	return children
}
