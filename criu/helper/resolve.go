package helper

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"cairn/criu/internal/frame"

	"golang.org/x/sys/unix"
)

// resolver finds the file of a handle in a container, and gives it as the container sees
// it. What it is asked is not trusted: it gives nothing but what is found by a path below
// the container's root.
//
// A handle of overlayfs holds the one of the file in its layer. The host's root can open
// that, on any mount of the file system that the layers are on, and the path of what was
// opened ends with the path in the container: layers hold no renamed directories of others.
// This needs no search, as the watch keeps the layer's directory entry in memory. It is not
// kept for a file of a lower layer that was changed, once the overlay was mounted again;
// then the overlay is searched, that one mount alone.
type resolver struct {
	pid  int      // of PID 1, on the host
	root *os.File // of the container

	once   sync.Once
	mounts []string // of the host, one for each file system
	stage  *os.File // see stand; nil until it is needed

	mu   sync.Mutex
	lost bool // something was not found
}

// mostWalked bounds how many directory entries a search may look at.
const mostWalked = 1 << 20

// Handles of overlayfs: fs/overlayfs/overlayfs.h of the kernel.
const (
	ovlType    = 0xf8
	ovlMagic   = 0xfb
	ovlPadding = 3
	ovlHeader  = 21 // version, magic, length, flags, type, 16 of a UUID
)

// lostWatch is the refusal of a dump that would lose a watch: CRIU would note no path.
func lostWatch() *refusal {
	return &refusal{frame.Failure{
		Code: "unsupported", Resource: "file watch",
		Message: "what a process watches can't be found by any path, as it was deleted or is below a mount" + advice,
	}}
}

func newResolver(pid int) (*resolver, error) {
	root, err := os.OpenFile("/proc/"+strconv.Itoa(pid)+"/root", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("open the container's root: %w", err)
	}
	return &resolver{pid: pid, root: root}, nil
}

func (r *resolver) Close() error {
	if r.stage != nil {
		r.stage.Close()
	}
	return r.root.Close()
}

// failed says whether a file was not found. CRIU does not take it for a failure.
func (r *resolver) failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost
}

// resolve opens the file whose handle a process has at an address, for a file system of
// which it has a descriptor. When it is not found on an overlay, it is a file that has no
// path, which keeps CRIU from looking for itself.
func (r *resolver) resolve(pid, mount int, at uintptr) (*os.File, error) {
	h, err := readHandle(pid, at)
	if err != nil {
		return nil, err
	}
	m, err := descriptorOf(pid, mount)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	f, err := r.find(m, h)
	if err == nil {
		defer f.Close()
		return r.stand(f)
	}
	if _, ok := insideOverlay(h); !ok {
		return nil, unix.ESTALE // it may be on the next mount
	}
	r.mu.Lock()
	r.lost = true
	r.mu.Unlock()
	return noPath()
}

// stand makes the descriptor that CRIU gets for a file: CRIU asks for its path, opens that
// and compares inode numbers. A descriptor that is but a path can't be given to another
// process in an answer, and opening the file itself would be an event for who watches it.
// So it is a directory of that path on a file system of its own.
func (r *resolver) stand(f *os.File) (*os.File, error) {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return nil, err
	}
	if r.stage == nil {
		if r.stage, err = newStage(); err != nil {
			return nil, err
		}
	}
	at := int(r.stage.Fd())
	dir, err := unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for _, part := range strings.Split(strings.Trim(name, "/"), "/") {
		if err != nil || part == "" {
			break
		}
		var next int
		if err = unix.Mkdirat(dir, part, 0o755); err == nil || errors.Is(err, unix.EEXIST) {
			next, err = unix.Openat(dir, part, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		}
		unix.Close(dir)
		dir = next
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(dir), name), nil
}

// newStage makes a file system that is mounted nowhere.
func newStage() (*os.File, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, err
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "stage"), nil
}

// noPath is a file that can't be found by any path.
func noPath() (*os.File, error) {
	fd, err := unix.MemfdCreate("lost", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "lost"), nil
}

// readMemory fills b from the memory of a process.
func readMemory(pid int, b []byte, at uintptr) error {
	local, remote := unix.Iovec{Base: &b[0]}, unix.RemoteIovec{Base: at, Len: len(b)}
	local.SetLen(len(b))
	n, err := unix.ProcessVMReadv(pid, []unix.Iovec{local}, []unix.RemoteIovec{remote}, 0)
	if err == nil && n != len(b) {
		err = unix.EFAULT
	}
	return err
}

func readHandle(pid int, at uintptr) (unix.FileHandle, error) {
	const headLen, most = 8, 128
	head := make([]byte, headLen)
	if err := readMemory(pid, head, at); err != nil {
		return unix.FileHandle{}, err
	}
	size, kind := binary.NativeEndian.Uint32(head), int32(binary.NativeEndian.Uint32(head[4:]))
	if size == 0 || size > most {
		return unix.FileHandle{}, unix.EINVAL
	}
	b := make([]byte, size)
	if err := readMemory(pid, b, at+headLen); err != nil {
		return unix.FileHandle{}, err
	}
	return unix.NewFileHandle(kind, b), nil
}

func descriptorOf(pid, fd int) (*os.File, error) {
	p, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(p)
	n, err := unix.PidfdGetfd(p, fd, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), "mount"), nil
}

// find opens the file of a handle, on the mount of the container that m is of.
func (r *resolver) find(m *os.File, h unix.FileHandle) (*os.File, error) {
	inner, ok := insideOverlay(h)
	if !ok {
		real, err := openHandle(m, h)
		if err != nil {
			return nil, err
		}
		defer real.Close()
		name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", real.Fd()))
		if err != nil {
			return nil, err
		}
		return r.openAs(name, real)
	}
	r.once.Do(func() { r.mounts = hostMounts() })
	for _, name := range r.mounts {
		f, err := r.findInLayer(m, name, inner)
		if err == nil {
			return f, nil
		}
	}
	return nil, unix.ESTALE
}

// insideOverlay is the handle of the file in a layer.
func insideOverlay(h unix.FileHandle) (unix.FileHandle, bool) {
	b := h.Bytes()
	if h.Type() != ovlType || len(b) < ovlPadding+ovlHeader || b[ovlPadding+1] != ovlMagic {
		return h, false
	}
	size := int(b[ovlPadding+2])
	if size <= ovlHeader || ovlPadding+size > len(b) {
		return h, false
	}
	return unix.NewFileHandle(int32(b[ovlPadding+4]), b[ovlPadding+ovlHeader:ovlPadding+size]), true
}

func openHandle(m *os.File, h unix.FileHandle) (*os.File, error) {
	fd, err := unix.OpenByHandleAt(int(m.Fd()), h, unix.O_PATH|unix.O_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "handle"), nil
}

// findInLayer finds the overlay's file that is, in a layer on the host's file system at
// name, the one of the handle.
func (r *resolver) findInLayer(overlay *os.File, name string, h unix.FileHandle) (*os.File, error) {
	// A directory, opened in full: O_PATH does not do for handles.
	dir, err := os.OpenFile(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	real, err := openHandle(dir, h)
	if err != nil {
		return nil, err
	}
	defer real.Close()
	long, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", real.Fd()))
	if err != nil {
		return nil, err
	}
	for rest := path.Clean("/" + long); ; {
		if f, err := r.openAs(rest, real); err == nil {
			return f, nil
		}
		i := strings.IndexByte(rest[1:], '/')
		if i < 0 {
			break
		}
		rest = rest[1+i:]
	}
	if f, err := r.openAs("/", real); err == nil {
		return f, nil
	}
	return r.search(overlay, real)
}

// openAs opens a path of the container, which must lead to the same file as real is in a
// layer, or on the container's mount itself.
func (r *resolver) openAs(name string, real *os.File) (*os.File, error) {
	fd, err := unix.Openat2(int(r.root.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	// Overlayfs gives files the inode numbers that they have in their layers, as those are
	// on one file system.
	var a, b unix.Stat_t
	err = errors.Join(unix.Fstat(fd, &a), unix.Fstat(int(real.Fd()), &b))
	if err == nil && (a.Ino != b.Ino || a.Mode&unix.S_IFMT != b.Mode&unix.S_IFMT) {
		err = unix.ESTALE
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

var errFound = errors.New("found")

// search looks for the file in all of an overlay.
func (r *resolver) search(overlay, real *os.File) (found *os.File, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(real.Fd()), &st); err != nil {
		return nil, err
	}
	base, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", overlay.Fd()))
	if err != nil {
		return nil, err
	}
	left := mostWalked
	err = walk(int(overlay.Fd()), base, &left, func(name string, ino uint64) error {
		if ino != st.Ino {
			return nil
		}
		f, err := r.openAs(name, real)
		if err != nil {
			return nil //nolint:nilerr // another one of the same number
		}
		found = f
		return errFound
	})
	if errors.Is(err, errFound) {
		return found, nil
	}
	return nil, errors.Join(err, unix.ESTALE)
}

// walk calls fn for each entry below a directory, of its mount only.
func walk(dir int, name string, left *int, fn func(name string, ino uint64) error) error {
	fd, err := unix.Openat2(dir, ".", &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC})
	if err != nil {
		return err
	}
	d := os.NewFile(uintptr(fd), name)
	defer d.Close()
	for {
		list, err := d.ReadDir(1024)
		for _, e := range list {
			if *left--; *left < 0 {
				return errors.New("too many files")
			}
			sub := path.Join(name, e.Name())
			if err := visit(fd, sub, e, left, fn); err != nil {
				return err
			}
		}
		if err != nil || len(list) == 0 {
			return nil // the end, or a directory that is just being removed
		}
	}
}

func visit(dir int, name string, e fs.DirEntry, left *int, fn func(name string, ino uint64) error) error {
	var st unix.Stat_t
	if unix.Fstatat(dir, e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT) != nil {
		return nil
	}
	if err := fn(name, st.Ino); err != nil || !e.IsDir() {
		return err
	}
	sub, err := unix.Openat2(dir, e.Name(), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil // another mount, or gone
	}
	defer unix.Close(sub)
	return walk(sub, name, left, fn)
}

// hostMounts gives one directory on each file system that the host has mounted, that of the
// images first: layers are mostly on the same.
func hostMounts() []string {
	list := []string{fmt.Sprintf("/proc/self/fd/%d", frame.FDHostImages)}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return list
	}
	defer f.Close()
	seen := map[string]bool{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		left, right, ok := strings.Cut(sc.Text(), " - ")
		at, tail := strings.Fields(left), strings.Fields(right)
		if !ok || len(at) < 5 || len(tail) < 1 || seen[at[2]] || strings.Contains(at[4], `\`) {
			continue
		}
		// What layers are on; not what may have to ask somebody else.
		kind, _, _ := strings.Cut(tail[0], ".")
		switch kind {
		case "overlay", "proc", "sysfs", "cgroup", "cgroup2", "devpts", "devtmpfs", "mqueue", "autofs", "nsfs",
			"debugfs", "tracefs", "securityfs", "bpf", "pstore", "efivarfs", "configfs", "fusectl", "hugetlbfs",
			"fuse", "nfs", "nfs4", "cifs", "9p", "virtiofs":
			continue
		}
		if fi, err := os.Stat(at[4]); err != nil || !fi.IsDir() {
			continue
		}
		seen[at[2]] = true
		list = append(list, at[4])
	}
	return list
}
