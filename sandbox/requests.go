package sandbox

import (
	"io"
	"time"
)

// CreateRequest asks for a new sandbox from an image.
type CreateRequest struct {
	Image  string // id, name or reference of an image that is present
	Name   string
	Labels map[string]string
	Config Config
}

// ExecRequest asks for a command to be run in a sandbox.
type ExecRequest struct {
	Command          []string
	Cwd              string
	Env              map[string]string
	User             string
	Stdin            io.Reader     // nil: empty. Read to its end before the command starts, up to a bound
	OpenStdin        bool          // background only: stdin stays open for WriteStdin
	TTY              *TTY          // not nil: a terminal of that size is its input, fed by WriteStdin, and its output, all on Stdout
	Timeout          time.Duration // 0: none. Then the whole process group is killed
	Background       bool
	hook             HookEvent // the command is a hook's
	OutputLimitBytes int64     // 0: the default. Of stdout and stderr each; reaching it kills the process group, or, at a terminal and by default, drops the oldest output
}

// Stream names one of a process's outputs.
type Stream string

// The streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// ExecResult is how a foreground command ended, with what it printed. Cut says
// that the process printed more to that stream than the caller asked for.
type ExecResult struct {
	Process   Process
	Stdout    []byte
	Stderr    []byte
	StdoutCut bool
	StderrCut bool
	Duration  time.Duration
}

// CheckpointRequest asks for a checkpoint. Processes is "auto" (they are included
// when there are any and they can be; without Stop a checkpoint of the files alone is
// taken otherwise), "include" or "exclude" ("" means "auto"). Wait is the durability to wait for.
type CheckpointRequest struct {
	Name      string
	Notes     string
	Labels    map[string]string
	Processes string
	Wait      Durability
	Stop      bool // leave the sandbox stopped; Resume brings back the processes that are included
	Kind      Kind // "" means KindManual

	// keepRoot: processes that live are not to lose the file system that they stand on.
	// CRIU finds what they have open, or run, by its path there.
	keepRoot bool
}

// RestoreRequest asks for a sandbox to be put back to a checkpoint. With Paths
// only those (absolute, files or whole directories) are put back, processes go
// on, and the head stays. Processes is "auto" (those of the checkpoint come back if it
// has them), "include" or "exclude" ("" means "auto").
type RestoreRequest struct {
	Checkpoint string
	Paths      []string
	Processes  string
	Verify     bool // check every byte first
}

// RestoreResult is the sandbox after a restore. Undo is the checkpoint that
// keeps what was there before, "" when nothing had changed.
type RestoreResult struct {
	Sandbox Sandbox
	Undo    string
	Timings Timings
	// Processes: those of the checkpoint run on. In a sandbox that is stopped they do when
	// it is resumed.
	Processes bool
}

// ForkRequest asks for new sandboxes from one checkpoint. Fields that are set
// replace those that the checkpoint recorded; Env is laid over. With Count > 1
// a Name gets "-1", "-2", ... appended. Processes is as in RestoreRequest; with a
// Command of its own "auto" leaves them out. They do not see Env.
type ForkRequest struct {
	Count     int
	Name      string
	Labels    map[string]string
	Env       map[string]string
	Command   []string // nil: the recorded one; empty: none
	Resources *Resources
	Network   Network
	Hooks     []Hook // nil: the recorded ones; empty: none
	Processes string
	Verify    bool // check every byte first
}

// ForkResult is one child, or why it could not be made.
type ForkResult struct {
	Sandbox Sandbox
	Err     error
	Timings Timings
}

// SandboxUpdate changes what may change of a sandbox; nil fields stay.
type SandboxUpdate struct {
	Name   *string
	Labels map[string]string
	Hooks  []Hook
}

// CheckpointUpdate changes what may change of a checkpoint; nil fields stay.
type CheckpointUpdate struct {
	Name   *string
	Notes  *string
	Labels map[string]string // nil: stay
}

// Output is a piece of a process's output.
type Output struct {
	Data   []byte
	Offset int64 // of Data's first byte
	Next   int64 // where to go on
	EOF    bool  // the process has ended and Data reaches the end
}

// Timeline is the tree of checkpoints with every sandbox's head on it.
type Timeline struct {
	Checkpoints []Checkpoint // oldest first, parents before children
	Heads       []Head
}

// Head says where one sandbox stands on the timeline.
type Head struct {
	SandboxID  string
	Sandbox    string
	State      State
	Checkpoint string // "" when it has none yet
}

// Usage is what a sandbox uses now. Counters that the host cannot give are 0.
type Usage struct {
	CPUNanos    int64
	MemoryBytes int64
	PIDs        int64
	DiskBytes   int64
}
