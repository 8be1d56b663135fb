package overlay

import (
	"errors"
	"fmt"
)

var (
	// ErrNotFound says that a layer is not in the pool.
	ErrNotFound = errors.New("overlay: no such layer")
	// ErrExists says that a layer of that id is in the pool already.
	ErrExists = errors.New("overlay: layer exists")
	// ErrBadID says that a layer id is not 1 to 64 letters, digits, "_" or "-".
	ErrBadID = errors.New("overlay: bad layer id")
	// ErrLocked says that another process has the pool open.
	ErrLocked = errors.New("overlay: pool is in use by another process")
	// ErrBusy says that somebody has a file of the attached root open for
	// writing, so that it can't be replaced. Nothing has changed.
	ErrBusy = errors.New("overlay: root is open for writing")
	// ErrNoQuota says that the pool's file system has no project quota.
	ErrNoQuota = errors.New("overlay: no project quota on this file system")
	// ErrGone says that the target process ended.
	ErrGone = errors.New("overlay: target process is gone")
	// ErrTooDeep says that a stack has more layers than overlayfs takes.
	ErrTooDeep = errors.New("overlay: stack is too deep")
)

// BadMountPointError says that the new root has something at Path on which
// the container's mount can't be put: a symbolic link on the way, or a file
// where a directory is needed. The old root is still in place.
type BadMountPointError struct {
	Path string // as seen inside
	What string
	Err  error
}

func (e *BadMountPointError) Error() string {
	return fmt.Sprintf("overlay: mount point %q: %s", e.Path, e.What)
}

func (e *BadMountPointError) Unwrap() error { return e.Err }

// CorruptError says that a layer is not what its manifest or digest says.
type CorruptError struct {
	Layer string
	Path  string // below the layer's root, "" for the manifest itself
	What  string
}

func (e *CorruptError) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("overlay: layer %s is damaged: %s", e.Layer, e.What)
	}
	return fmt.Sprintf("overlay: layer %s is damaged: %q: %s", e.Layer, e.Path, e.What)
}

// ArchiveError says that an image layer's tar has an entry that is refused.
type ArchiveError struct {
	Entry string
	What  string
	Err   error
}

func (e *ArchiveError) Error() string {
	return fmt.Sprintf("overlay: archive entry %q: %s", e.Entry, e.What)
}

func (e *ArchiveError) Unwrap() error { return e.Err }

// LimitError says that an input is larger than the caller allows.
type LimitError struct {
	What string // "bytes" or "entries"
	Max  int64
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("overlay: more than %d %s", e.Max, e.What)
}
