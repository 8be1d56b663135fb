package sandbox

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"cairn/sandbox/failpoint"
)

// Options are what a Service needs. All interfaces are required.
type Options struct {
	Store      Store
	Layers     Layers
	Containers Containers
	Dumps      Dumps
	Webhooks   Webhooks
	Log        *slog.Logger
	Now        func() time.Time
	NewID      func(prefix string) string // e.g. "sbx" gives "sbx_01J..."

	MaxDepth       int           // checkpoint layers in a stack before they are squashed
	LockWait       time.Duration // how long an operation waits for another on the same sandbox
	MountSources   []string      // host paths below which Mount.Source may lie
	ResolvConf     func() string // content of /etc/resolv.conf for Network egress
	MaxForks       int           // children of one fork request
	MaxSandboxes   int           // live sandboxes; 0: no bound
	DefaultDisk    int64         // DiskBytes when a request gives none; 0: none
	OutputLimit    int64         // of stdout and stderr of one process each, when a request gives none
	StdinLimit     int64         // of stdin given with a command
	Versions       map[string]string
	Failpoints     *failpoint.Points
	DurableWorkers int
	CompressAfter  time.Duration // that a checkpoint's processes are not used before its memory is compressed; 0: never
}

// Service does every operation on sandboxes and checkpoints. Its methods may be
// called at the same time; see the package comment for the order they take.
type Service struct {
	o     Options
	log   *slog.Logger
	locks *keyLocks
	pins  *pins
	wake  *broadcast // of events

	mu   sync.Mutex
	live map[string]*liveSandbox // by sandbox id
	open map[string]Operation    // by sandbox id: attached, but not yet recorded

	background context.Context // ends at Close
	stop       context.CancelCauseFunc
	tasks      sync.WaitGroup
	durable    *durableQueue
	sweepSoon  chan struct{}
	sweeping   sync.Mutex
	expanding  expansions
}

// liveSandbox is what the daemon holds in memory of a sandbox with a container.
type liveSandbox struct {
	container Container
	processes map[string]*liveProcess
	ended     int  // processes since the last trim
	busy      bool // the last checkpoint had to copy
}

var errClosed = errors.New("the daemon is stopping")

// New makes a Service. Call Reconcile before anything else, and Close at the end.
func New(o Options) *Service {
	ctx, stop := context.WithCancelCause(context.Background())
	s := &Service{
		o: o, log: o.Log, locks: newKeyLocks(), pins: newPins(), wake: newBroadcast(),
		live: map[string]*liveSandbox{}, open: map[string]Operation{}, background: ctx, stop: stop, sweepSoon: make(chan struct{}, 1),
		expanding: expansions{m: map[string]*expansion{}},
	}
	s.durable = newDurableQueue(s)
	return s
}

// Close ends the background work: checkpoints that are only captured are made
// durable until ctx is done, waiters end, sandboxes go on running.
func (s *Service) Close(ctx context.Context) error {
	err := s.durable.drain(ctx)
	s.stop(errClosed)
	s.tasks.Wait()
	return err
}

// goDo runs fn in the background until Close.
func (s *Service) goDo(fn func(ctx context.Context)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.background.Err() != nil {
		return
	}
	s.tasks.Add(1)
	go func() {
		defer s.tasks.Done()
		fn(s.background)
	}()
}

// lock takes the sandbox for op, waiting at most Options.LockWait.
func (s *Service) lock(ctx context.Context, id, op string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.LockWait)
	defer cancel()
	return s.locks.lock(ctx, id, op, true)
}

// share takes the sandbox together with other sharers, for something short that
// must not meet a checkpoint or a restore.
func (s *Service) share(ctx context.Context, id, op string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.LockWait)
	defer cancel()
	return s.locks.lock(ctx, id, op, false)
}

// resolve gives the sandbox's id for an id or a name.
func (s *Service) resolve(ctx context.Context, idOrName string) (string, error) {
	sb, err := s.Sandbox(ctx, idOrName)
	return sb.ID, err
}

// lockSandbox resolves, locks, and reads the sandbox again under the lock.
func (s *Service) lockSandbox(ctx context.Context, idOrName, op string) (Sandbox, func(), error) {
	id, err := s.resolve(ctx, idOrName)
	if err != nil {
		return Sandbox{}, nil, err
	}
	unlock, err := s.lock(ctx, id, op)
	if err != nil {
		return Sandbox{}, nil, err
	}
	var sb Sandbox
	if err = s.settle(ctx, id); err == nil {
		sb, err = s.Sandbox(ctx, id)
	}
	if err != nil {
		unlock()
		return Sandbox{}, nil, err
	}
	return sb, unlock, nil
}

// container gives the live container of a sandbox; CodeConflict when it has none.
func (s *Service) container(sb Sandbox) (Container, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.live[sb.ID]; l != nil && l.container.Name() == sb.Container {
		return l.container, nil
	}
	return nil, Errorf(CodeConflict, "sandbox %s is %s: resume it first", sb.Name, sb.State)
}

// reach is a failpoint.
func (s *Service) reach(name string) error { return s.o.Failpoints.Reach(name) }

// passed is a failpoint after which there is no way back: an injected error only shows in the log.
func (s *Service) passed(name string) {
	if err := s.reach(name); err != nil {
		s.log.Error("a failpoint where nothing can fail any more", "err", err)
	}
}

// outlive gives a context for what must be finished although the caller may go.
func outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
}

// undo is a list of steps that take back what was done so far.
type undo struct{ steps []func(context.Context) }

func (u *undo) add(fn func(context.Context)) { u.steps = append(u.steps, fn) }

// release forgets the steps: what was done stays.
func (u *undo) release() { u.steps = nil }

// run takes the steps, last one first, on a context that outlives ctx.
func (u *undo) run(ctx context.Context) {
	ctx, cancel := outlive(ctx)
	defer cancel()
	for _, fn := range slices.Backward(u.steps) {
		fn(ctx)
	}
	u.steps = nil
}

// Failpoints are the names at which tests may end the daemon.
func Failpoints() []string {
	return []string{
		"create.recorded", "create.acquired", "create.layers", "create.attached",
		"checkpoint.journalled", "checkpoint.prepared", "checkpoint.frozen", "checkpoint.attached", "checkpoint.thawed", "checkpoint.committed",
		"copy.frozen", "copy.captured", "copy.committed",
		"restore.journalled", "restore.prepared", "restore.killed", "restore.attached", "restore.committed",
		"dump.prepared", "dump.taken", "sleep.dumped", "sleep.committed",
		"revive.journalled", "revive.killed", "revive.attached", "revive.restored", "revive.committed",
		"restore_paths.kept", "restore_paths.removed",
		"delete.journalled", "delete.destroyed",
		"delete_checkpoint.committed", "sweep.removed",
		"squash.made", "squash.committed",
		"pages.compacted", "pages.committed",
		"compress.made", "compress.committed", "expand.made", "expand.committed",
		"durable.sealed", "durable.committed",
		"resume.acquired", "resume.attached",
		"trial.acquired", "trial.attached", "trial.started",
	}
}
