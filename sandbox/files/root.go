package files

import (
	"os"
	"time"
)

// IDs is how many user and group ids a sandbox has: 0 to IDs-1.
const IDs = 65536

// overflowID is what an owner outside of the sandbox's range looks like inside.
const overflowID = 65534

// Limits bounds what one operation may take. A zero field means its default.
type Limits struct {
	FileBytes  int64 // size of a file that Write accepts; default 1 GiB
	TarBytes   int64 // sum of file sizes in an archive, either way; default 8 GiB
	TarEntries int   // entries in an archive, either way; default 1,000,000
	Depth      int   // directories below each other in Remove, TarOut and TarIn; default 512
	ListItems  int   // entries in one page of List; default 1000
}

func (l Limits) withDefaults() Limits {
	if l.FileBytes <= 0 {
		l.FileBytes = 1 << 30
	}
	if l.TarBytes <= 0 {
		l.TarBytes = 8 << 30
	}
	if l.TarEntries <= 0 {
		l.TarEntries = 1_000_000
	}
	if l.Depth <= 0 {
		l.Depth = 512
	}
	if l.ListItems <= 0 {
		l.ListItems = 1000
	}
	return l
}

// Options says how a [Root] is seen.
type Options struct {
	// UIDBase and GIDBase are the host ids that are 0 inside; 0 for a view whose
	// owners are not shifted.
	UIDBase, GIDBase uint32
	// ReadOnly refuses every change with ErrReadOnly.
	ReadOnly bool
	Limits   Limits
}

// Root is a directory that is "/" for every path given to its methods. Its
// methods may be called concurrently.
type Root struct {
	dir      *os.File
	uid, gid uint32
	readOnly bool
	limits   Limits
}

// New returns a Root of dir, which may be an O_PATH descriptor. The caller keeps
// dir, and closes it when no method runs any more. After a sandbox got another
// root file system, a new descriptor and a new Root are needed.
func New(dir *os.File, o Options) *Root {
	return &Root{dir: dir, uid: o.UIDBase, gid: o.GIDBase, readOnly: o.ReadOnly, limits: o.Limits.withDefaults()}
}

// Type is a kind of file.
type Type string

// The types of files.
const (
	TypeFile    Type = "file"
	TypeDir     Type = "dir"
	TypeSymlink Type = "symlink"
	TypeFIFO    Type = "fifo"
	TypeSocket  Type = "socket"
	TypeChar    Type = "char"
	TypeBlock   Type = "block"
)

// Info describes a file.
type Info struct {
	// Name is the last element of the path, "/" for the root. Bytes that are not
	// UTF-8 are replaced; then NameBytes holds the name itself.
	Name      string
	NameBytes []byte
	Type      Type
	Mode      uint32 // permissions, set-id and sticky bits: 0 to 07777
	Size      int64  // bytes
	Blocks    int64  // bytes allocated; less than Size for a sparse file
	UID, GID  uint32 // inside; 65534 when the owner has no id inside
	Links     uint32
	Inode     uint64
	ModTime   time.Time
	// Target is where a symlink points, in the manner of Name and NameBytes.
	Target      string
	TargetBytes []byte
	// Mount is true where another file system is mounted: List shows it, nothing
	// here enters it.
	Mount bool
}

func inside(id, base uint32) uint32 {
	if id < base || id-base >= IDs {
		return overflowID
	}
	return id - base
}
