package sandbox

import (
	"context"
	"io"
	"os"
	"time"
)

// Store keeps the metadata. Update and View run fn in one transaction; an error
// of fn rolls it back and is returned as it is. A transaction that Update
// committed survives the daemon; Sync makes everything committed so far survive
// the host. Implementations translate their own errors to *Error.
type Store interface {
	Update(ctx context.Context, fn func(Tx) error) error
	View(ctx context.Context, fn func(Tx) error) error
	Sync(ctx context.Context) error
}

// Tx is one transaction. What is not there is an *Error of CodeNotFound; a name
// that is taken is CodeConflict. Lists are newest first (timeline and journal:
// oldest first).
type Tx interface {
	Sandbox(idOrName string) (Sandbox, error)
	Sandboxes(f SandboxFilter, p Page) (List[Sandbox], error)
	CountSandboxes() (int, error)
	PutSandbox(Sandbox) error
	DeleteSandbox(id string) error // its processes too; its checkpoints stay

	Checkpoint(id string) (Checkpoint, error) // Children filled in
	Checkpoints(f CheckpointFilter, p Page) (List[Checkpoint], error)
	AllCheckpoints() ([]Checkpoint, error) // oldest first
	PutCheckpoint(Checkpoint) error
	DeleteCheckpoint(id string) error // children are given its parent

	Image(idOrName string) (Image, error)
	Images(p Page) (List[Image], error)
	PutImage(Image) error
	DeleteImage(id string) error // CodeInUse while a sandbox or checkpoint is of it

	Process(sandboxID, id string) (Process, error)
	Processes(sandboxID string) ([]Process, error)
	PutProcess(Process) error
	DeleteProcess(sandboxID, id string) error

	Layer(id string) (Layer, error)
	PutLayer(Layer) error
	DeleteLayer(id string) error
	LayersInUse() (map[string]bool, error) // named by any image, checkpoint, sandbox or journal entry

	Operations() ([]Operation, error)
	PutOperation(Operation) error
	DeleteOperation(id string) error

	AppendEvent(Event) (Event, error) // with Seq given
	Events(after int64, limit int) ([]Event, error)
	LastEvent() (int64, error)

	NextProject() (uint32, error) // never the same twice, never 0
}

// Layer is what is recorded of a layer in the pool.
type Layer struct {
	ID        string
	Digest    string // of its manifest, "" until sealed
	Bytes     int64
	Files     int64
	Merges    []string // of a squashed layer: the layers it stands for, top first
	Packed    string   // of a layer with memory: the compressed layer, if it is still there, of what it shares
	CreatedAt time.Time
}

// Operation is a journal entry: an operation that has begun to change things
// outside the database. Data is the operation's own record, JSON.
type Operation struct {
	ID        string // op_...
	Kind      string
	SandboxID string
	Layers    []string // layers that it made and that must be kept while it is open
	Data      []byte
	StartedAt time.Time
}

// Stack is an overlay stack to attach: Upper is written; Layers are top first.
type Stack struct {
	Upper  string
	Layers []string
}

// Target is the container that a stack is attached to.
type Target struct {
	PID      int    // of its PID 1, as the host sees it
	IDBase   uint32 // uid and gid that root inside has on the host
	Hostname string
	Mounts   []Mount // to add, read-only; those of an earlier attach stay
}

// Blocker is why a living process keeps a sandbox from being switched.
type Blocker struct {
	PID    int
	Comm   string
	Reason string // one word: "cwd", "writable_file", "watch", ...
	Path   string // "" when there is none
}

// Layers is the pool of layers and the mount calls on it. ErrBusy of Attach (as
// CodeBusy) means that something has the old root open for writing.
type Layers interface {
	CreateUpper(ctx context.Context, id string, project uint32, limitBytes int64) error
	WriteIdentity(ctx context.Context, id string, below []string, files map[string]string, dirs []string) error
	Prepare(ctx context.Context, t Target, s Stack) (Prepared, error)
	AttachedUpper(pid int) (string, error) // "" when the container is blank
	// Blockers says which of the processes, frozen, keep the root of pid's container
	// from being switched: they could write, or would miss, what is in the old one.
	Blockers(pids []int, pid int) ([]Blocker, error)
	Empty(upper string) (bool, error)
	// StartCapture copies an attached upper, in use, into the new layer dst.
	StartCapture(ctx context.Context, upper, dst, previous string) (Capture, error)
	Has(ctx context.Context, layers []string, path string) (bool, error) // any of them says something of path, whiteouts included

	View(ctx context.Context, layers []string) (Tree, error)
	MountStack(ctx context.Context, s Stack) (Tree, error)
	Diff(ctx context.Context, from, to []string, visit func(Change) error) error
	// Squash merges layers, top first, into one for use on the layers below.
	Squash(ctx context.Context, dst string, layers, below []string) error

	Seal(ctx context.Context, id string) (digest string, bytes, files int64, err error)
	Verify(ctx context.Context, id, digest string) error // CodeCorrupt
	Usage(ctx context.Context, id string) (bytes, files int64, err error)
	ProjectUsage(project uint32) (bytes int64, known bool, err error)
	SetLimit(project uint32, limitBytes int64) error
	// Account counts what is written below dir, on the pool's file system, towards
	// the project, where the file system can.
	Account(dir string, project uint32) error

	List() ([]string, error)
	Remove(ctx context.Context, id string) error // nil when it is not there
}

// Prepared is a stack that is mounted but not yet attached.
type Prepared interface {
	// Attach makes it the root of the container. On an error the old root is back.
	// The returned Closer drops the old root, which may wait for the disk: close it
	// after the sandbox is thawed.
	Attach(ctx context.Context) (old io.Closer, err error)
	Close() error
}

// Capture is a copy in the making of an upper that stays attached.
type Capture interface {
	// Finish makes up for what changed during the copy and afterwards. The sandbox
	// is frozen; it may go on when Finish returns.
	Finish(ctx context.Context) (unchanged bool, err error)
	// Commit puts the layer into the pool, unless it is unchanged.
	Commit(ctx context.Context) error
	// Close removes what was not committed. It may be called twice.
	Close() error
}

// Tree is a mounted stack that only the daemon sees.
type Tree interface {
	Root() *os.File
	Close() error
}

// Containers makes and finds containers that are blank: started, with no root of
// their own yet. Names are unique for ever.
type Containers interface {
	// Acquire takes one from the warm pool, or starts one. warm says which.
	Acquire(ctx context.Context, n Network) (c Container, warm bool, err error)
	// AcquireLike is Acquire for one whose Program is given; CodeUnsupported when there is
	// none such any more.
	AcquireLike(ctx context.Context, n Network, program string) (Container, error)
	// Open finds one that a former daemon acquired; CodeNotFound when it is gone or dead.
	Open(ctx context.Context, name string) (Container, error)
	// Destroy ends everything in it and removes every trace; nil when there is none.
	Destroy(ctx context.Context, name string) error
	// Names lists the containers that were acquired, dead ones included.
	Names(ctx context.Context) ([]string, error)
}

// Container is one acquired container.
type Container interface {
	Name() string
	PID() int       // of PID 1, as the host sees it
	IDBase() uint32 // host id of root inside
	IODir() string  // host path of its /run/cairn
	// Program identifies the program that is its PID 1 and its stem. Processes can be brought
	// back only where it is the same.
	Program() string
	Freeze(ctx context.Context) error
	Thaw(ctx context.Context) error
	Processes() ([]int, error)         // host pids of everything in it
	KillAll(ctx context.Context) error // all but PID 1 and the stem, until they are gone
	Limit(ctx context.Context, r Resources) error
	SetGeneration(n int64) error // in /run/cairn/generation
	Usage() (Usage, error)
	Done() <-chan struct{} // closed when PID 1 has died
	Guest() Guest
}

// Dumps keeps the processes of containers, the stem and all that it started, in layers,
// and brings them back.
type Dumps interface {
	Pages
	// Usable is nil, or CodeUnsupported with what this host lacks.
	Usable(ctx context.Context) error
	// PrepareDump makes everything ready to dump the processes of c into the layer, which
	// is new and empty. They run on meanwhile.
	// ids are those of the processes that were started through the guest and run.
	PrepareDump(ctx context.Context, c Container, layer string, ids []string) (Dump, error)
	// Check compares a layer with the digest of its dump: CodeCorrupt. Nothing that it has
	// not approved of may be restored.
	Check(ctx context.Context, layer, digest string) error
	// Restore brings back the processes of a dump in c, in the place of those that it has.
	// On any error c is good for nothing but to be destroyed.
	Restore(ctx context.Context, c Container, r DumpedProcesses) error
}

// Dump is a dump that was prepared.
type Dump interface {
	// Take dumps. Requests to the guest wait until it returns. stopped is called while all
	// the processes stand still and everything of them is in the layer; its error makes them
	// run on. They run on afterwards in any case, unless end is set: then complete is called
	// after stopped, with what is about to be returned, and they end if it agrees.
	// CodeUnsupported: a process has something that cannot be dumped; CodeNoSpace,
	// CodeTimeout, CodeConflict. They run on then.
	Take(ctx context.Context, end bool, stopped func(context.Context) error, complete func(Dumped) error) (Dumped, error)
	Close() error
}

// Dumped is what was dumped.
type Dumped struct {
	Digest string // of the layer, to be given to Check
	Bytes  int64
	Freeze time.Duration // for which they stood still, until complete was called if they end
}

// DumpedProcesses are processes to be brought back.
type DumpedProcesses struct {
	Layer string
	IDs   []string // of the processes that were started through the guest and ran
	// Attach gives the container the files that belong to them. It is called when nothing
	// runs in the container but PID 1.
	Attach func(ctx context.Context) error
}

// Webhooks posts to addresses that the operator's configuration allows.
type Webhooks interface {
	// Check is nil for an address that may be posted to; CodeInvalid, CodeForbidden.
	Check(url string) error
	// Post posts a JSON document, with key as its idempotency key, and is nil for an answer
	// of success. The message of an *Error says what was answered instead.
	Post(ctx context.Context, url, key string, body []byte) error
}

// GuestStart asks the stem to start a process.
type GuestStart struct {
	ID        string
	Command   []string
	Env       []string
	Cwd       string
	User      string
	Stdin     string // "none", "file" (given as StdinData) or "pipe"
	StdinData io.Reader
	TTY       *TTY // not nil: a terminal, and no Stdin
}

// Exit is how a process ended.
type Exit struct {
	ExitCode int    // 128+signal when killed by one
	Signal   string // "SIGKILL", "" when it exited
	Lost     bool
	At       time.Time
}

// Guest is the stem of one container. Everything it says is untrusted.
type Guest interface {
	Ready(ctx context.Context) error // returns when it answers
	Start(ctx context.Context, r GuestStart) (pid int, err error)
	Signal(ctx context.Context, id string, signal int) error // to the process group
	WriteStdin(ctx context.Context, id string, data []byte) error
	CloseStdin(ctx context.Context, id string) error
	Resize(ctx context.Context, id string, size TTY) error
	Wait(ctx context.Context, id string, outputLimit int64) (Exit, error) // CodeTooLarge when a stream grew past the limit
	// WaitKeeping is Wait for a process at a terminal: of its output about the last
	// keep bytes are kept. What was dropped reads as zeros.
	WaitKeeping(ctx context.Context, id string, keep int64) (Exit, error)
	Follow(ctx context.Context, id string, s Stream, offset int64, fn func([]byte) error) error // to the end of the process
	Output(id string, s Stream, offset int64, max int) (Output, error)
	OutputRange(id string, s Stream) (start, end int64, err error) // of the bytes that are kept
	Forget(ctx context.Context, id string) error
}
