package sandbox

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	sigKill     = 9
	// keptProcesses is how many ended processes of a sandbox stay known.
	keptProcesses = 200
)

// liveProcess is a process that the daemon waits for.
type liveProcess struct {
	container Container

	mu   sync.Mutex
	proc Process
	done chan struct{} // closed when proc is final
	kept chan struct{} // closed when its start is recorded, so that its end comes after
	// ended is closed when its end is recorded.
	ended chan struct{}
	// asleep is closed when it is to be waited for no more, without its end being recorded.
	asleep chan struct{}
}

// attended makes a liveProcess of one whose start is recorded.
func attended(c Container, proc Process) *liveProcess {
	p := newLiveProcess(c, proc)
	close(p.kept)
	return p
}

func newLiveProcess(c Container, proc Process) *liveProcess {
	return &liveProcess{
		container: c, proc: proc,
		done: make(chan struct{}), kept: make(chan struct{}), ended: make(chan struct{}), asleep: make(chan struct{}),
	}
}

func (p *liveProcess) get() Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.proc
}

// Exec starts a command in a running sandbox and returns at once; Wait waits.
// Errors: CodeInvalid, CodeNotFound, CodeConflict (not running),
// CodeCommandNotFound, CodeNotExecutable.
func (s *Service) Exec(ctx context.Context, idOrName string, r ExecRequest) (Process, error) {
	p, err := s.exec(ctx, idOrName, r)
	if err != nil {
		return Process{}, err
	}
	if !r.Background {
		s.goDo(func(ctx context.Context) {
			select {
			case <-p.done:
				s.forget(p.container, p.proc.ID, time.Minute)
			case <-ctx.Done():
			}
		})
	}
	return p.get(), nil
}

// Run starts a command, waits for it, and returns what it printed, at most
// maxOutput bytes of each stream. When ctx ends the process group is killed.
func (s *Service) Run(ctx context.Context, idOrName string, r ExecRequest, maxOutput int) (ExecResult, error) {
	r.Background = false
	begin := s.o.Now()
	p, err := s.exec(ctx, idOrName, r)
	if err != nil {
		return ExecResult{}, err
	}
	proc := p.get()
	select {
	case <-p.done:
	case <-ctx.Done():
		s.abandon(ctx, proc)
		return ExecResult{}, Wrap(context.Cause(ctx), CodeCancelled, "the caller went away; the command was killed")
	}
	proc = p.get()
	res := ExecResult{Process: proc, Duration: s.o.Now().Sub(begin)}
	for _, out := range []struct {
		stream Stream
		data   *[]byte
		cut    *bool
	}{{Stdout, &res.Stdout, &res.StdoutCut}, {Stderr, &res.Stderr, &res.StderrCut}} {
		o, err := p.container.Guest().Output(proc.ID, out.stream, 0, maxOutput)
		if err != nil {
			return ExecResult{}, err
		}
		*out.data, *out.cut = o.Data, !o.EOF
	}
	const soon = 200 * time.Millisecond
	s.forget(p.container, proc.ID, soon)
	return res, nil
}

// forget removes the output of a process whose caller has it: a little later, so
// that it is not in the way of the caller's next command.
func (s *Service) forget(c Container, id string, later time.Duration) {
	s.goDo(func(ctx context.Context) {
		select {
		case <-time.After(later):
		case <-ctx.Done(): // the output goes with the sandbox
			return
		case <-c.Done():
			return
		}
		if err := c.Guest().Forget(ctx, id); err != nil && ctx.Err() == nil {
			s.log.Debug("cannot remove the output of a process", "process", id, "err", err)
		}
	})
}

// abandon kills a foreground command whose caller is gone.
func (s *Service) abandon(ctx context.Context, p Process) {
	ctx, cancel := outlive(ctx)
	defer cancel()
	if err := s.Signal(ctx, p.SandboxID, p.ID, sigKill); err != nil && CodeOf(err) != CodeNotFound && CodeOf(err) != CodeConflict {
		s.log.Warn("cannot kill an abandoned command", "process", p.ID, "err", err)
	}
}

func (s *Service) exec(ctx context.Context, idOrName string, r ExecRequest) (*liveProcess, error) {
	if len(r.Command) == 0 {
		return nil, Invalid("command", "a program and its arguments")
	}
	if err := checkCommand("command", r.Command); err != nil {
		return nil, err
	}
	if err := checkEnv(r.Env); err != nil {
		return nil, err
	}
	if err := checkCwd(r.Cwd); err != nil {
		return nil, err
	}
	if err := checkUser(r.User); err != nil {
		return nil, err
	}
	if r.TTY != nil {
		if err := r.TTY.check("tty"); err != nil {
			return nil, err
		}
		if r.Stdin != nil {
			return nil, Invalid("stdin", "not together with tty: write to the terminal once it runs")
		}
	}
	id := idOrName
	if !strings.HasPrefix(id, "sbx_") {
		var err error
		if id, err = s.resolve(ctx, idOrName); err != nil {
			return nil, err
		}
	}
	unlock, err := s.share(ctx, id, "exec")
	if err != nil {
		return nil, err
	}
	defer unlock()
	var sb Sandbox
	var img Image
	err = s.o.Store.View(ctx, func(tx Tx) (err error) {
		if sb, err = tx.Sandbox(id); err != nil {
			return err
		}
		img, err = tx.Image(sb.ImageID)
		return err
	})
	if err != nil {
		return nil, err
	}
	if sb.State != StateRunning {
		return nil, Errorf(CodeConflict, "sandbox %s is %s; resume it first", sb.Name, sb.State)
	}
	c, err := s.container(sb)
	if err != nil {
		return nil, err
	}
	return s.startProcess(ctx, sb, img, c, r, false)
}

// startMain starts the sandbox's configured command, if there is one.
func (s *Service) startMain(ctx context.Context, sb Sandbox, c Container) error {
	if len(sb.Config.Command) == 0 {
		return nil
	}
	var img Image
	err := s.o.Store.View(ctx, func(tx Tx) (err error) { img, err = tx.Image(sb.ImageID); return err })
	if err != nil {
		return err
	}
	_, err = s.startProcess(ctx, sb, img, c, ExecRequest{Command: sb.Config.Command, Background: true}, true)
	return err
}

// environment lays the image's, the sandbox's and the request's variables over
// each other.
func environment(sb Sandbox, img Image, request map[string]string) []string {
	env := map[string]string{"PATH": defaultPath, "HOSTNAME": sb.Hostname, "CAIRN_SANDBOX_ID": sb.ID}
	maps.Copy(env, img.Env)
	maps.Copy(env, sb.Config.Env)
	maps.Copy(env, request)
	list := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}

// first gives the first that is not empty.
func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

func (s *Service) startProcess(ctx context.Context, sb Sandbox, img Image, c Container, r ExecRequest, main bool) (*liveProcess, error) {
	p := newLiveProcess(c, Process{
		ID: s.o.NewID("exec"), SandboxID: sb.ID, Command: r.Command, Background: r.Background, Main: main, TTY: r.TTY != nil,
		Cwd: first(r.Cwd, sb.Config.Cwd, img.Cwd, "/"), User: first(r.User, sb.Config.User, img.User, "0"),
		Hook:  r.hook,
		State: ProcessRunning, StartedAt: s.o.Now(),
	})
	start := GuestStart{
		ID: p.proc.ID, Command: r.Command, Env: environment(sb, img, r.Env),
		Cwd: p.proc.Cwd, User: p.proc.User, Stdin: "none",
	}
	switch {
	case r.TTY != nil:
		start.TTY = r.TTY
	case r.OpenStdin:
		start.Stdin = "pipe"
	case r.Stdin != nil:
		start.Stdin, start.StdinData = "file", r.Stdin
	}
	pid, err := c.Guest().Start(ctx, start)
	if err != nil {
		return nil, err
	}
	p.proc.PID = pid
	defer close(p.kept)
	s.attend(sb.ID, c, p, r)
	err = s.update(context.WithoutCancel(ctx), func(tx Tx) error {
		proc := p.get()
		if err := tx.PutProcess(proc); err != nil {
			return err
		}
		return s.emit(tx, "process.started", sb.ID, proc.ID, map[string]any{"command": proc.Command, "main": main})
	})
	if err != nil {
		s.abandon(ctx, p.proc)
		return nil, err
	}
	return p, nil
}

// attend waits for a process in the background, enforces its bounds, and records
// its end.
func (s *Service) attend(sandboxID string, c Container, p *liveProcess, r ExecRequest) {
	s.mu.Lock()
	if l := s.live[sandboxID]; l != nil {
		l.processes[p.proc.ID] = p
	}
	s.mu.Unlock()
	limit, keep := r.OutputLimitBytes, p.proc.TTY && r.OutputLimitBytes == 0
	if limit == 0 {
		limit = s.o.OutputLimit
	}
	s.goDo(func(ctx context.Context) {
		id := p.proc.ID
		defer close(p.ended)
		waitCtx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		gone := make(chan struct{})
		defer close(gone)
		go func() {
			select {
			case <-c.Done():
				cancel(errContainerGone)
			case <-p.asleep:
				cancel(errAsleep)
			case <-gone:
			}
		}()
		exit, timedOut, truncated := s.waitBounded(waitCtx, c, id, r.Timeout, limit, keep)
		if ctx.Err() != nil {
			return // the next daemon waits on
		}
		if errors.Is(context.Cause(waitCtx), errAsleep) {
			p.mu.Lock()
			p.proc.State = ProcessAsleep
			p.mu.Unlock()
			close(p.done)
			return
		}
		p.mu.Lock()
		p.proc.TimedOut, p.proc.Truncated = timedOut, truncated
		p.proc.State, p.proc.ExitCode, p.proc.Signal = ProcessExited, exit.ExitCode, exit.Signal
		if exit.Lost {
			p.proc.State = ProcessLost
		}
		p.proc.ExitedAt = exit.At
		if exit.At.Before(p.proc.StartedAt) || exit.At.After(s.o.Now()) { // the guest's clock is only its word
			p.proc.ExitedAt = s.o.Now()
		}
		final := p.proc
		p.mu.Unlock()
		close(p.done)
		<-p.kept
		s.recordExit(ctx, c, final)
	})
}

var errContainerGone = Errorf(CodeConflict, "the sandbox's container has ended")

// waitBounded waits for the end, killing the group at the time or output bound;
// with keep it drops the oldest output there instead.
func (s *Service) waitBounded(ctx context.Context, c Container, id string, timeout time.Duration, limit int64, keep bool) (exit Exit, timedOut, truncated bool) {
	g := c.Guest()
	wait, cancel := ctx, context.CancelFunc(func() {})
	if timeout > 0 {
		wait, cancel = context.WithTimeout(ctx, timeout)
	}
	await := g.Wait
	if keep {
		await = g.WaitKeeping
	}
	exit, err := await(wait, id, limit)
	cancel()
	if err == nil {
		return exit, false, false
	}
	lost := Exit{Lost: true, At: s.o.Now()}
	switch {
	case ctx.Err() != nil:
		return lost, false, false
	case wait.Err() != nil:
		timedOut = true
	case CodeOf(err) == CodeTooLarge:
		truncated = true
	default:
		s.log.Warn("cannot wait for a process; it counts as lost", "process", id, "err", err)
		return lost, false, false
	}
	if err := g.Signal(ctx, id, sigKill); err != nil && ctx.Err() == nil {
		s.log.Warn("cannot kill a process at its bound", "process", id, "err", err)
	}
	if exit, err = g.Wait(ctx, id, 0); err != nil {
		return lost, timedOut, truncated
	}
	return exit, timedOut, truncated
}

// recordExit stores the end of a process, and forgets the oldest ended ones.
func (s *Service) recordExit(ctx context.Context, c Container, p Process) {
	err := s.update(ctx, func(tx Tx) error {
		if _, err := tx.Sandbox(p.SandboxID); err != nil {
			return err
		}
		if err := tx.PutProcess(p); err != nil {
			return err
		}
		return s.emit(tx, "process.exited", p.SandboxID, p.ID, map[string]any{"exit_code": p.ExitCode, "state": string(p.State)})
	})
	if err != nil && CodeOf(err) != CodeNotFound && ctx.Err() == nil {
		s.log.Error("cannot record the end of a process", "process", p.ID, "err", err)
	}
	s.mu.Lock()
	trim := false
	if l := s.live[p.SandboxID]; l != nil {
		delete(l.processes, p.ID)
		l.ended++
		if trim = l.ended >= keptProcesses/4; trim {
			l.ended = 0
		}
	}
	s.mu.Unlock()
	if trim {
		s.trimProcesses(ctx, c, p.SandboxID)
	}
}

func (s *Service) trimProcesses(ctx context.Context, c Container, sandboxID string) {
	var old []Process
	err := s.o.Store.View(ctx, func(tx Tx) error {
		all, err := tx.Processes(sandboxID) // newest first
		ended := 0
		for _, p := range all {
			if p.State == ProcessRunning {
				continue
			}
			if ended++; ended > keptProcesses {
				old = append(old, p)
			}
		}
		return err
	})
	for _, p := range old {
		if err == nil {
			err = c.Guest().Forget(ctx, p.ID)
		}
		if err == nil {
			err = s.o.Store.Update(ctx, func(tx Tx) error { return tx.DeleteProcess(sandboxID, p.ID) })
		}
	}
	if err != nil && ctx.Err() == nil {
		s.log.Warn("cannot forget ended processes", "sandbox", sandboxID, "err", err)
	}
}
