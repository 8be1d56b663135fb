package criu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// What a container's /dev/shm holds is in no layer and, but for what was deleted, in none
// of CRIU's images: processes that have it open or mapped find it there by its path. It
// goes beside the images, in two files, see FORMAT.md.
const (
	shmIndex = "shm.json"
	shmData  = "shm.img"

	mostShmEntries = 1 << 17
	mostShmDepth   = 64
)

// shmEntry is a line of the index: a file, after the directory it is in.
type shmEntry struct {
	Name   []byte // path, relative to /dev/shm; "." is the directory itself
	Mode   uint32 // as of stat(2)
	UID    uint32 // as seen inside
	GID    uint32
	MTime  int64             `json:",omitempty"` // nanoseconds since 1970
	Size   int64             `json:",omitempty"` // bytes
	Data   []extent          `json:",omitempty"` // what of it is no hole, as it follows in shm.img
	Target []byte            `json:",omitempty"` // of a symbolic link
	Link   []byte            `json:",omitempty"` // an earlier name of the same file
	Attrs  map[string][]byte `json:",omitempty"` // extended attributes
}

// extent is a part of a file.
type extent struct{ At, Len int64 }

// ShmStats are the figures of a saved /dev/shm.
type ShmStats struct {
	Files int
	Bytes int64 // of content, without holes
	Took  time.Duration
}

// SaveShm writes the content of the container's /dev/shm into the directory of images:
// files, directories, links, FIFOs and sockets with modes, owners, times, holes and user
// attributes. Nothing is written when it is empty. To be called while the tree stands
// still, in DumpOptions.Stopped. Codes: CodeUnsupported, CodeNoSpace, CodeGone.
func SaveShm(ctx context.Context, t Target, images *os.File) (ShmStats, error) {
	begun := time.Now()
	dir, err := openShm(t.PID)
	if err != nil {
		return ShmStats{}, err
	}
	defer dir.Close()
	own, err := ownersOf(t.PID)
	if err != nil {
		return ShmStats{}, err
	}
	s := &shmSaver{ctx: ctx, owners: own, images: images, seen: map[uint64][]byte{}}
	if err := errors.Join(s.save(dir), s.close()); err != nil {
		for _, name := range []string{shmIndex, shmData} {
			_ = unix.Unlinkat(int(images.Fd()), name, 0)
		}
		return ShmStats{}, shmFailure("save", err)
	}
	s.stats.Took = time.Since(begun)
	return s.stats, nil
}

// RestoreShm empties the container's /dev/shm and fills it with what SaveShm saved into the
// images, if anything. Nothing may use it: to be called between Clear and Restore. The
// images must be what Verify approves of. Codes: CodeImages, CodeNoSpace, CodeGone.
func RestoreShm(ctx context.Context, t Target, images *os.File) error {
	dir, err := openShm(t.PID)
	if err != nil {
		return err
	}
	defer dir.Close()
	own, err := ownersOf(t.PID)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		// The kernel lets nobody make files there whose own id it does not know inside. The
		// thread is never unlocked, and so ends with the goroutine.
		runtime.LockOSThread()
		err := becomeOwner(own)
		if err == nil {
			err = clearShm(ctx, dir)
		}
		if err == nil {
			r := &shmRestorer{ctx: ctx, owners: own, images: images, dir: dir}
			err = r.restore()
		}
		done <- err
	}()
	return shmFailure("restore", <-done)
}

// openShm opens the container's /dev/shm. It must be a tmpfs of the container's own.
func openShm(pid int) (*os.File, error) {
	gone := func(err error) error {
		return &Error{Code: CodeGone, PID: 1, Message: "the sandbox has ended", Err: err}
	}
	root, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, gone(err)
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, "dev/shm", &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, fmt.Errorf("open /dev/shm of the sandbox: %w", err)
	}
	dir := os.NewFile(uintptr(fd), "/dev/shm")
	var fs unix.Statfs_t
	var st, above unix.Stat_t
	err = errors.Join(unix.Fstatfs(fd, &fs), unix.Fstat(fd, &st), unix.Fstatat(root, "dev", &above, unix.AT_SYMLINK_NOFOLLOW))
	if err == nil && (fs.Type != unix.TMPFS_MAGIC || st.Dev == above.Dev) {
		err = errors.New("it is no file system of its own")
	}
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("open /dev/shm of the sandbox: %w", err)
	}
	return dir, nil
}

// owners maps ids of a container.
type owners struct{ uid, gid idRange }

type idRange struct{ base, count uint32 }

// inside is the id as the container sees it.
func (r idRange) inside(id uint32) (uint32, error) {
	if id < r.base || id-r.base >= r.count {
		return 0, fmt.Errorf("host id %d is none of the sandbox's", id)
	}
	return id - r.base, nil
}

func (r idRange) outside(id uint32) (int, error) {
	if id >= r.count {
		return 0, &Error{Code: CodeImages, Resource: "image " + shmIndex, Message: fmt.Sprintf("the sandbox has no id %d", id)}
	}
	return int(r.base + id), nil
}

func ownersOf(pid int) (o owners, err error) {
	for file, r := range map[string]*idRange{"uid_map": &o.uid, "gid_map": &o.gid} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/%s", pid, file))
		if err != nil {
			return o, &Error{Code: CodeGone, PID: 1, Message: "the sandbox has ended", Err: err}
		}
		sc := bufio.NewScanner(f)
		for sc.Scan() {
			var in uint32
			if _, err := fmt.Sscan(strings.TrimSpace(sc.Text()), &in, &r.base, &r.count); err == nil && in == 0 {
				break
			}
		}
		f.Close()
		if r.count == 0 {
			return o, fmt.Errorf("%s of the sandbox does not map its root", file)
		}
	}
	return o, nil
}

// becomeOwner gives the thread the file system ids of the container's root, and lets it
// keep its capabilities.
func becomeOwner(o owners) error {
	if err := keepCapabilities(); err != nil {
		return err
	}
	// These calls report the former id and no error.
	_, _ = unix.SetfsgidRetGid(int(o.gid.base))
	_, _ = unix.SetfsuidRetUid(int(o.uid.base))
	u, _ := unix.SetfsuidRetUid(-1)
	g, _ := unix.SetfsgidRetGid(-1)
	if u != int(o.uid.base) || g != int(o.gid.base) {
		return errors.New("the ids of the sandbox's root can't be taken")
	}
	return nil
}

// keepCapabilities lets the thread keep them when its ids change.
func keepCapabilities() error {
	const keep = 1 << 2 // SECBIT_NO_SETUID_FIXUP
	bits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_SECUREBITS, uintptr(bits|keep), 0, 0, 0)
	}
	if err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	return nil
}

// shmFailure is the error for the caller.
func shmFailure(what string, err error) error {
	var own *Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return &Error{Code: CodeNoSpace, Resource: "/dev/shm", Message: "there is no room to " + what + " its content", Err: err}
	}
	return fmt.Errorf("%s /dev/shm: %w", what, err)
}
