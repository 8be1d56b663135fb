// Package frame is what the daemon and the helper cairn-criu say to each other, over a
// socket that the helper inherits. Each message is one line of JSON.
//
// The daemon speaks first, with a Setup; the helper starts CRIU and answers with an Event
// Ready. For a restore it does not enter the sandbox before that is replied to with a Reply.
// Then one Request is made, which ends with an Event Done. In between the helper
// asks once to go on, with Stopped (dump) or Restored (restore), and waits for a Reply.
// The end of the stream stands for a Reply that says no.
package frame

// Descriptors that the helper inherits, besides the standard ones.
const (
	FDControl    = 3 + iota // the socket
	FDPID                   // pidfd of the container's PID 1
	FDImages                // directory of images, as CRIU is to see it
	FDCache                 // directory with CRIU's cache of what the kernel can do
	FDLastPID               // the host's /proc/sys/kernel/ns_last_pid
	FDHostImages            // the same directory as FDImages, as the host sees it
	FDCgroup                // cgroup.procs of the first group to join; others follow
)

// Op is what a helper is for.
type Op string

// The operations.
const (
	OpDump    Op = "dump"
	OpRestore Op = "restore"
	OpClear   Op = "clear" // end every process but PID 1
	OpProbe   Op = "probe"
)

// Setup is what a helper needs to know to start CRIU.
type Setup struct {
	Op      Op
	PID     int    // of PID 1 on the host
	Cgroups int    // how many descriptors follow from FDCgroup on
	Bundle  string // CRIU's directory, as seen inside (outside for OpProbe)
	ProbeID int    // OpProbe: host id that the probing process has
}

// Request is one dump or restore.
type Request struct {
	Root         int // dump: pid inside of the root of the tree
	LeaveRunning bool
	Parent       string // dump: directory of the former images, relative to this one
	TrackMemory  bool   // dump: let the kernel note what changes from now on
	LogLevel     int
	GhostLimit   uint32   // bytes of a deleted file that may go into the images
	TimeoutS     uint32   // how long the processes may take to stop
	External     []string // directories whose files keep no size in the images
}

// Kind is the kind of an Event.
type Kind string

// The kinds.
const (
	Ready    Kind = "ready"
	Stopped  Kind = "stopped"  // dump: the tree is dumped and stands still
	Restored Kind = "restored" // restore: the tree is there and stands still
	Done     Kind = "done"
)

// Event is what a helper tells.
type Event struct {
	Kind    Kind
	Failure *Failure `json:",omitempty"`
	Root    int      // restore: pid inside of the root
	Dump    DumpStats
	Files   []File
	Probe   *Probe           `json:",omitempty"`
	Micros  map[string]int64 `json:",omitempty"`
}

// Reply answers Stopped and Restored.
type Reply struct{ Go bool }

// Failure is why something did not work.
type Failure struct {
	Code     string
	PID      int // inside
	Comm     string
	Resource string
	Message  string
	Log      []string // CRIU's error lines, for the daemon's own log
}

// DumpStats are CRIU's own figures, in microseconds and pages.
type DumpStats struct {
	FreezingUS, FrozenUS, MemDumpUS, MemWriteUS int64
	PagesScanned, PagesWritten, PagesSkipped    int64
	Processes, Threads                          int
}

// File is a file below an external directory that a dumped process has open.
type File struct {
	Path string // absolute, inside
	Size int64  // at the dump
}

// Probe is what CRIU and the kernel can do.
type Probe struct {
	Version     int // major*10000 + minor*100 + sub
	MemTrack    bool
	CacheSaved  bool
	CheckPassed bool
	Complaints  []string // CRIU's, of the kernel
}
