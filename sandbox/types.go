package sandbox

import (
	"slices"
	"time"
)

// State is where a sandbox is in its life.
type State string

// The states. Creating ends in Running, or the sandbox is gone. Paused is frozen by request,
// or because the disk limit was reached. Stopped has no container; Resume brings it back.
// Failed has lost files; a restore brings it back.
const (
	StateCreating State = "creating"
	StateRunning  State = "running"
	StatePaused   State = "paused"
	StateStopped  State = "stopped"
	StateFailed   State = "failed"
)

// Network is which network a sandbox has.
type Network string

// The networks: none (loopback only), or egress (out through NAT; neither
// other sandboxes, nor the host, nor private addresses of it can be reached).
const (
	NetworkNone   Network = "none"
	NetworkEgress Network = "egress"
)

// Resources are the limits of a sandbox. Zero means no limit of its own.
type Resources struct {
	CPUs        float64 // CPU time per second of wall time, in cores
	MemoryBytes int64
	PIDs        int64
	DiskBytes   int64 // what the sandbox's own layers may occupy together
}

// Mount is a host path seen, read-only, inside a sandbox. Source must lie below
// a path that the operator's configuration allows.
type Mount struct {
	Source string
	Target string
}

// Config is what a caller chooses about a sandbox; a fork inherits it.
type Config struct {
	Command   []string          // main process; empty: none is started
	Env       map[string]string // over the image's
	Cwd       string            // "" means the image's
	User      string            // "name", "uid", "name:group", "uid:gid"; "" means the image's
	Resources Resources
	Network   Network
	Mounts    []Mount
	Hooks     []Hook
}

// Image is a root file system that sandboxes start from.
type Image struct {
	ID        string // img_...
	Name      string // reference or given name
	Digest    string // "sha256:..." of the manifest (pull, archive) or of the tar
	Layers    []string
	Env       map[string]string
	Cwd       string
	User      string
	Command   []string // the image's entrypoint and command, for information: it is not started by itself
	SizeBytes int64
	Files     int64
	CreatedAt time.Time
	Labels    map[string]string
}

// Sandbox is one agent's environment.
type Sandbox struct {
	ID         string // sbx_...
	Name       string // unique among live sandboxes; defaults to the id
	State      State
	Reason     string // why it is paused, stopped or failed, when not by request; of one that runs, that its hooks did not
	ImageID    string
	ImageName  string
	Config     Config
	Labels     map[string]string
	Head       string // checkpoint id, "" before the first
	ForkedFrom string // checkpoint id, "" when created from an image
	Generation int64  // 1 at creation, plus one at each restore; a fork has its checkpoint's plus one
	Hostname   string
	CreatedAt  time.Time
	UpdatedAt  time.Time
	RestoredAt time.Time // zero until the first restore

	Container string   // runtime's name of its container, "" when stopped
	Project   uint32   // project id for disk accounting, never used again for another sandbox
	Upper     string   // layer id the sandbox writes
	Base      []string // layers mounted below the upper, top first; Identity is among them
	Identity  string   // layer id with its host name and the like
	Below     []string // what is below the upper as checkpoints record it: without Identity, squashed where that was done
	Captured  string   // last layer copied from this upper, "" when there is none
	HeadMoved bool     // the head was deleted: Head is its parent, and Below is not Head's stack

	// Revived says that its processes came out of a checkpoint: the command is not to be
	// started again.
	Revived bool
	// Asleep is the checkpoint whose processes come back when the sandbox, which is
	// stopped, is resumed; "" for none.
	Asleep string
	// HooksDue are hooks that have not been run yet.
	HooksDue HookDue
}

// Kind says what made a checkpoint.
type Kind string

// The kinds. A BeforeRestore checkpoint keeps what a restore replaced; a
// ForkPoint was taken to fork a running sandbox.
const (
	KindManual        Kind = "manual"
	KindBeforeRestore Kind = "before_restore"
	KindForkPoint     Kind = "fork_point"
)

// Durability is how much of a checkpoint's safety is reached.
type Durability string

// Captured survives the daemon; Durable survives the host, and has a digest.
// Lost was only captured when the host went down. Damaged did not verify.
const (
	DurabilityCaptured Durability = "captured"
	DurabilityDurable  Durability = "durable"
	DurabilityLost     Durability = "lost"
	DurabilityDamaged  Durability = "damaged"
)

// Method is how a checkpoint got its files: by switching the upper away, in
// constant time, or by copying it while the sandbox was frozen.
type Method string

// The methods.
const (
	MethodSwitch Method = "switch"
	MethodCopy   Method = "copy"
)

// Timings of one operation, in milliseconds. FreezeMS is the whole time for
// which the sandbox's processes stood still.
type Timings struct {
	FreezeMS float64
	TotalMS  float64
}

// Sizes of a checkpoint. Exclusive is what deleting it alone would free;
// Shared is what it needs but others need too; Layer is what this checkpoint's own
// layer holds. Exclusive and Shared are counted when asked for.
type Sizes struct {
	LayerBytes     int64
	LayerFiles     int64
	ProcessBytes   int64 // memory and state of its processes, without what it shares with a base
	ExclusiveBytes int64
	SharedBytes    int64
}

// Checkpoint is an immutable record of a sandbox's files, and of its processes if they
// are included, at one instant.
type Checkpoint struct {
	ID           string // ckpt_...
	Name         string
	Notes        string
	Labels       map[string]string
	Kind         Kind
	SandboxID    string // where it was taken; the sandbox may be gone
	Sandbox      string // that sandbox's name
	Parent       string // checkpoint id, "" for the first
	ImageID      string
	ImageName    string
	Config       Config
	Generation   int64
	Layer        string   // the layer that this checkpoint added, "" when it added none
	Stack        []string // top first, image layers included, identity and skeleton not
	Method       Method
	Processes    bool      // the processes that ran are part of it
	Reason       string    // why they are not, although they might have been
	Images       string    // layer with the processes, "" without
	ImagesDigest string    // of that layer, known at once: see criu/FORMAT.md
	PagesBase    string    // layer that has all the memory that Images shares, Images itself for a base; "" for none
	UsedAt       time.Time // when its processes were brought back, roughly
	Compressed   bool      // Images and PagesBase have to be expanded before a restore
	Program      string    // that started them: see Container
	Running      []Process // the processes that were started by request and ran
	Durability   Durability
	Digest       string   // "sha256:...", of LayerDigests as FORMAT.md says; "" until durable
	LayerDigests []string // of the manifests of Layers() when it became durable, in that order
	Timings      Timings
	Sizes        Sizes
	Versions     map[string]string // "cairn", "kernel"
	CreatedAt    time.Time
	DurableAt    time.Time // zero until durable
	Children     []string  // checkpoint ids
	Skipped      bool      // in an answer only: nothing had changed and this is the head
}

// Layers gives all that the checkpoint needs: the layer with its processes, if any, then
// its stack, top first.
func (cp Checkpoint) Layers() []string {
	if cp.Images == "" {
		return cp.Stack
	}
	return slices.Concat([]string{cp.Images}, cp.Stack)
}

// ProcessState is where an agent process is in its life.
type ProcessState string

// The process states. Lost means that its exit was not seen, because the
// sandbox or its stem died with it. Asleep: it is in the checkpoint that its sandbox was
// stopped with, and goes on when that is resumed.
const (
	ProcessRunning ProcessState = "running"
	ProcessExited  ProcessState = "exited"
	ProcessLost    ProcessState = "lost"
	ProcessAsleep  ProcessState = "asleep"
)

// Process is one command started in a sandbox.
type Process struct {
	ID         string // exec_...
	SandboxID  string
	Command    []string
	Cwd        string
	User       string
	Background bool
	Main       bool      // the sandbox's configured command
	TTY        bool      // it has a terminal
	Hook       HookEvent // a hook's command; "" for any other
	PID        int       // inside the sandbox
	State      ProcessState
	ExitCode   int    // 128+signal when killed by one
	Signal     string // "SIGKILL", "" when it exited by itself
	TimedOut   bool
	Truncated  bool // killed because its output reached the bound
	StartedAt  time.Time
	ExitedAt   time.Time // zero while running
}

// ChangeKind says how a path differs between two stacks.
type ChangeKind string

// The kinds of change. Type: another file type under the same name. Metadata:
// mode, owner or extended attributes differ while the content is the same.
const (
	ChangeAdded    ChangeKind = "added"
	ChangeModified ChangeKind = "modified"
	ChangeDeleted  ChangeKind = "deleted"
	ChangeType     ChangeKind = "type_changed"
	ChangeMetadata ChangeKind = "metadata_changed"
)

// Change is one path that differs.
type Change struct {
	Path             string // absolute
	Kind             ChangeKind
	Type             string // "file", "directory", "symlink", "fifo", "socket", "device" (of the new one; of the old one when deleted)
	OldType          string // when Kind is ChangeType
	OldSize, NewSize int64  // bytes, regular files
	OldMode, NewMode uint32 // permission bits with setuid, setgid, sticky
	ContentChanged   bool
}

// Event is one change that observers of the daemon see.
type Event struct {
	Seq       int64 // strictly increasing; the id of the stream
	Time      time.Time
	Type      string // "sandbox.created", "checkpoint.durable", ...
	Sandbox   string
	Subject   string // id of what changed
	Operation string // operation id, "" for none
	Data      map[string]any
}

// Page asks for a part of a list. Cursor is a former answer's NextCursor.
type Page struct {
	Cursor string
	Limit  int
}

// List is a part of a list.
type List[T any] struct {
	Items      []T
	NextCursor string // "" at the end
}

// SandboxFilter narrows a list of sandboxes; zero fields do not.
type SandboxFilter struct {
	State  State
	Labels map[string]string
}

// CheckpointFilter narrows a list of checkpoints; zero fields do not.
type CheckpointFilter struct {
	SandboxID string
	Labels    map[string]string
	Name      string
}
