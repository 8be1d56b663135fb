package api

import (
	"context"
	"io"
	"net/http"

	"cairn/sandbox"
	"cairn/sandbox/files"
)

// Service is what the API does with sandboxes, their processes and files.
// Sandboxes are named by id or name. Errors are [*sandbox.Error]; any other is
// shown as internal.
type Service interface {
	Create(ctx context.Context, r sandbox.CreateRequest) (sandbox.Sandbox, error)
	Sandbox(ctx context.Context, idOrName string) (sandbox.Sandbox, error)
	Sandboxes(ctx context.Context, f sandbox.SandboxFilter, p sandbox.Page) (sandbox.List[sandbox.Sandbox], error)
	UpdateSandbox(ctx context.Context, id string, u sandbox.SandboxUpdate) (sandbox.Sandbox, error)
	Delete(ctx context.Context, id string) error
	Pause(ctx context.Context, id string) (sandbox.Sandbox, error)
	Resume(ctx context.Context, id string) (sandbox.Sandbox, error)
	Usage(ctx context.Context, id string) (sandbox.Usage, error)

	// Exec starts a command and returns; it goes on when ctx ends.
	Exec(ctx context.Context, id string, r sandbox.ExecRequest) (sandbox.Process, error)
	// Run runs a command to its end and kills its process group when ctx ends.
	// At most maxOutput bytes of each stream are returned.
	Run(ctx context.Context, id string, r sandbox.ExecRequest, maxOutput int) (sandbox.ExecResult, error)
	Wait(ctx context.Context, id, procID string) (sandbox.Process, error)
	// Follow calls fn with the output from offset on, until the process has ended
	// and all was given, fn fails, or ctx ends.
	Follow(ctx context.Context, id, procID string, s sandbox.Stream, offset int64, fn func([]byte) error) error
	ProcessOutput(ctx context.Context, id, procID string, s sandbox.Stream, offset int64, max int) (sandbox.Output, error)
	Processes(ctx context.Context, id string) ([]sandbox.Process, error)
	Process(ctx context.Context, id, procID string) (sandbox.Process, error)
	Signal(ctx context.Context, id, procID string, signal int) error
	WriteStdin(ctx context.Context, id, procID string, data []byte) error
	CloseStdin(ctx context.Context, id, procID string) error
	Resize(ctx context.Context, id, procID string, size sandbox.TTY) error
	// OutputRange says which bytes of a stream are kept: those from start up to end.
	OutputRange(ctx context.Context, id, procID string, s sandbox.Stream) (start, end int64, err error)

	// Files gives the files of a sandbox until release is called; with write no
	// other operation changes the sandbox meanwhile.
	Files(ctx context.Context, id string, write bool) (root *files.Root, release func(), err error)
	CheckpointFiles(ctx context.Context, checkpointID string) (root *files.Root, release func(), err error)

	Checkpoint(ctx context.Context, id string, r sandbox.CheckpointRequest) (sandbox.Checkpoint, error)
	GetCheckpoint(ctx context.Context, id string) (sandbox.Checkpoint, error)
	Checkpoints(ctx context.Context, f sandbox.CheckpointFilter, p sandbox.Page) (sandbox.List[sandbox.Checkpoint], error)
	UpdateCheckpoint(ctx context.Context, id string, u sandbox.CheckpointUpdate) (sandbox.Checkpoint, error)
	DeleteCheckpoint(ctx context.Context, id string) error
	Verify(ctx context.Context, id string) (sandbox.Checkpoint, error)
	// TrialRestore restores into a container that is thrown away. That it fails is no error.
	TrialRestore(ctx context.Context, id string) (sandbox.Trial, error)
	Diff(ctx context.Context, from, to string, visit func(sandbox.Change) error) error
	// DiffNow compares with the sandbox as it is; from "" means its head.
	DiffNow(ctx context.Context, id, from string, visit func(sandbox.Change) error) error
	FileDiff(ctx context.Context, from, to, path string) (diff string, binary bool, err error)
	FileDiffNow(ctx context.Context, id, from, path string) (diff string, binary bool, err error)
	Restore(ctx context.Context, id string, r sandbox.RestoreRequest) (sandbox.RestoreResult, error)
	Fork(ctx context.Context, checkpointID string, r sandbox.ForkRequest) ([]sandbox.ForkResult, error)
	ForkSandbox(ctx context.Context, id string, r sandbox.ForkRequest) ([]sandbox.ForkResult, error)
	Timeline(ctx context.Context) (sandbox.Timeline, error)
	// Subscribe calls fn for each event after the given number (below 0: from now
	// on) until fn fails or ctx ends.
	Subscribe(ctx context.Context, after int64, fn func(sandbox.Event) error) error
}

// PullRequest asks for an image of a registry.
type PullRequest struct {
	Ref                string
	Name               string // "" means the reference
	PlainHTTP          bool
	Username, Password string // "" for none
}

// Progress says how far a pull is.
type Progress struct {
	Status     string // what is being done: "resolving", "downloading", "unpacking", ...
	Layer      string // digest, "" when it is about the whole
	DoneBytes  int64
	TotalBytes int64 // 0 while it is not known
}

// Images is what the API does with images. Images are named by id, name or reference.
type Images interface {
	// Pull calls progress, unless it is nil, from one goroutine at a time.
	Pull(ctx context.Context, r PullRequest, progress func(Progress)) (sandbox.Image, error)
	// Import reads an archive, compressed or not; a root file system needs a name.
	Import(ctx context.Context, r io.Reader, name string) (sandbox.Image, error)
	Image(ctx context.Context, idOrName string) (sandbox.Image, error)
	Images(ctx context.Context, p sandbox.Page) (sandbox.List[sandbox.Image], error)
	DeleteImage(ctx context.Context, idOrName string) error
}

// Record is the answer to a request that came with an idempotency key.
type Record struct {
	Hash   string // of the request
	Status int    // 0 while the request runs
	Header http.Header
	Body   []byte
}

// Idempotency keeps answers by key. Scope keeps callers apart. Reservations that
// a dead daemon left must have been released before the API is served.
type Idempotency interface {
	// Reserve takes the key for a request (fresh), or returns what is kept under it.
	Reserve(ctx context.Context, scope, key, requestHash string) (rec *Record, fresh bool, err error)
	Complete(ctx context.Context, scope, key string, status int, header http.Header, body []byte) error
	Release(ctx context.Context, scope, key string) error
}
