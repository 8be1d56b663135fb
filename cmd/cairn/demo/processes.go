package demo

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"cairn/api/client"
	"cairn/api/types"
	"cairn/scripts/bench/baseline"
)

// thinker is a program that has worked for something that is only in its memory.
const thinker = `
import hashlib, sys, time
known = {n: hashlib.sha256(b'%d' % n).hexdigest() for n in range(100000)}
def state(): return '%d %s' % (len(known), hashlib.sha256(''.join(sorted(known.values())).encode()).hexdigest()[:12])
open('/ready', 'w').close()
print(state(), flush=True)
for line in sys.stdin:
    if line.startswith('forget'): known.clear()
    if line.startswith('learn'): known[line] = line
    print(state(), flush=True)
time.sleep(3600)
`

// remember checkpoints a running program, has it lose its memory, and brings it back.
func (d *demo) remember(ctx context.Context) error {
	d.heading("A program of its has something in memory. That is checkpointed, lost, restored, and forked.")
	yes := true
	p, err := client.Get[types.Process](d.cairn.Exec(ctx, d.sandbox, nil, types.Exec{
		Command: []string{"python3", "-c", thinker}, Background: &yes, OpenStdin: &yes,
	}))
	if err != nil {
		return err
	}
	was, err := d.said(ctx, d.sandbox, p.Id, 0)
	if err != nil {
		return err
	}
	d.say("  it knows %s", was)
	theirs, err := d.rememberTheirWay(ctx)
	if err != nil {
		return err
	}
	var c types.Checkpoint
	include := types.Include
	took, err := timed(func() (err error) {
		c, err = client.Get[types.Checkpoint](d.cairn.CreateCheckpoint(ctx, d.sandbox, nil, types.CreateCheckpoint{Processes: &include}))
		return err
	})
	if err != nil {
		return err
	}
	d.op("checkpoint with the program", took, theirs.checkpoint, "task.Checkpoint")
	d.say("  the sandbox stood still for %.1f ms", c.Timings.FreezeMs)
	empty, err := d.ask(ctx, d.sandbox, p.Id, "forget")
	if err != nil {
		return err
	}
	took, err = timed(func() error {
		_, err := client.Get[types.RestoredSandbox](d.cairn.RestoreSandbox(ctx, d.sandbox, nil, types.Restore{Checkpoint: c.Id}))
		return err
	})
	if err != nil {
		return err
	}
	d.op("restore with it", took, theirs.restore, "end the task, new task from the images")
	now, err := d.ask(ctx, d.sandbox, p.Id, "well?")
	if err != nil {
		return err
	}
	d.prove(empty != was && now == was, "the same process knows again what it had forgotten", ": "+now)
	const n = 2
	count := n
	var forks types.ForkResults
	took, err = timed(func() (err error) {
		forks, err = client.Get[types.ForkResults](d.cairn.ForkCheckpoint(ctx, c.Id, nil, types.Fork{Count: &count}))
		return err
	})
	if err != nil {
		return err
	}
	d.op("fork it twice", took, theirs.fork, "new containers from the images, twice")
	answers := map[string]bool{was: true}
	for i, r := range forks.Items {
		if r.Error != nil {
			return &client.Error{Problem: *r.Error}
		}
		answer, err := d.ask(ctx, r.Sandbox.Id, p.Id, fmt.Sprintf("learn %d", i))
		if err != nil {
			return err
		}
		answers[answer] = true
		if err := client.Done(d.cairn.DeleteSandbox(ctx, r.Sandbox.Id)); err != nil {
			return err
		}
	}
	now, err = d.ask(ctx, d.sandbox, p.Id, "well?")
	if err != nil {
		return err
	}
	d.prove(len(answers) == n+1 && now == was, "its forks went on from there, each its own way", "")
	return client.Done(d.cairn.SignalProcess(ctx, d.sandbox, p.Id, nil, types.Signal{Signal: "KILL"}))
}

// ask gives a program a line and returns what it answers.
func (d *demo) ask(ctx context.Context, sandbox, process, line string) (string, error) {
	o, err := client.Get[types.Output](d.cairn.GetProcessOutput(ctx, sandbox, process, nil))
	if err != nil {
		return "", err
	}
	if err := client.Done(d.cairn.WriteStdinWithBody(ctx, sandbox, process, nil, "application/octet-stream", strings.NewReader(line+"\n"))); err != nil {
		return "", err
	}
	return d.said(ctx, sandbox, process, o.NextOffset)
}

// said waits for a program's next line.
func (d *demo) said(ctx context.Context, sandbox, process string, offset int64) (string, error) {
	const patience = 30_000
	wait := patience
	var text string
	for !strings.Contains(text, "\n") {
		o, err := client.Get[types.Output](d.cairn.GetProcessOutput(ctx, sandbox, process, &types.GetProcessOutputParams{Offset: &offset, Wait: &wait}))
		if err != nil {
			return "", err
		}
		data := o.Data
		if o.Encoding == types.Base64 {
			raw, err := base64.StdEncoding.DecodeString(o.Data)
			if err != nil {
				return "", err
			}
			data = string(raw)
		}
		if o.Eof && data == "" {
			return "", errors.New("the program in the sandbox has ended")
		}
		text += data
		offset = o.NextOffset
	}
	line, _, _ := strings.Cut(text, "\n")
	return line, nil
}

type theirTimes struct{ checkpoint, restore, fork time.Duration }

// rememberTheirWay does the same by containerd's own calls, with files and all else
// left as they are.
func (d *demo) rememberTheirWay(ctx context.Context) (t theirTimes, err error) {
	args := []string{"python3", "-c", thinker}
	k, err := d.base.Create(ctx, d.image, args...)
	if err != nil {
		return t, err
	}
	if err := k.Run(ctx, "sh", "-c", "until [ -e /ready ]; do sleep 0.05; done"); err != nil {
		return t, err
	}
	var images baseline.Images
	if t.checkpoint, err = timed(func() (err error) { images, err = k.Checkpoint(ctx); return err }); err != nil {
		return t, err
	}
	if t.restore, err = timed(func() error { return k.Restore(ctx, images) }); err != nil {
		return t, err
	}
	var more []*baseline.Container
	t.fork, err = timed(func() error {
		for range 2 {
			c, err := d.base.CreateFrom(ctx, d.image, images, args...)
			if err != nil {
				return err
			}
			more = append(more, c)
		}
		return nil
	})
	for _, c := range append(more, k) {
		err = errors.Join(err, c.Delete(ctx))
	}
	return t, err
}
