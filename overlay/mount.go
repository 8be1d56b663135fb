package overlay

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLayers is what overlayfs takes, less the skeleton.
const maxLayers = 499

// sourcePrefix and the upper's id are the mount's source, by which
// AttachedUpper knows it again.
const sourcePrefix = "cairn-"

// config is what an overlay is made of: paths under 256 bytes.
type config struct {
	source string
	lowers []string // top first
	upper  string   // "" for an overlay that can't be written to
	work   string
	attrs  int // mount attributes
}

// overlayOptions switches off all that ties layers to one another or to a
// place, because ours are linked, copied and stacked anew:
//   - index and nfs_export keep file handles of the lower layers;
//   - redirect_dir and metacopy make a layer refer to paths and data of the
//     ones below. "nofollow" also ignores what a foreign layer brings;
//   - uuid would write the overlay's identity into each upper;
//   - xino only matters for layers on several file systems. Ours are on one,
//     where overlayfs gives stable inode numbers by itself.
func overlayOptions() [][2]string {
	return [][2]string{
		{"index", "off"},
		{"nfs_export", "off"},
		{"redirect_dir", "nofollow"},
		{"metacopy", "off"},
		{"uuid", "null"},
		{"xino", "off"},
	}
}

// newOverlay makes an overlay mount that is attached nowhere.
func newOverlay(c config) (*os.File, error) {
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsopen overlay: %w", err)
	}
	fsctx := os.NewFile(uintptr(fd), "overlay")
	defer fsctx.Close()
	set := func(key, value string) error {
		if err := unix.FsconfigSetString(fd, key, value); err != nil {
			return fmt.Errorf("overlay option %s=%s: %w%s", key, value, err, kernelMessages(fsctx))
		}
		return nil
	}
	if err := set("source", c.source); err != nil {
		return nil, err
	}
	for _, o := range overlayOptions() {
		if err := set(o[0], o[1]); err != nil {
			return nil, err
		}
	}
	for _, l := range c.lowers {
		if err := set("lowerdir+", l); err != nil {
			return nil, err
		}
	}
	if c.upper != "" {
		if err := set("upperdir", c.upper); err != nil {
			return nil, err
		}
		if err := set("workdir", c.work); err != nil {
			return nil, err
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return nil, fmt.Errorf("create overlay: %w%s", err, kernelMessages(fsctx))
	}
	m, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, c.attrs)
	if err != nil {
		return nil, fmt.Errorf("fsmount overlay: %w", err)
	}
	mnt := os.NewFile(uintptr(m), "overlay")
	if c.upper != "" {
		// Overlayfs mounts read-only when it can't make its work
		// directory, and says so only in the kernel's log.
		var st unix.Statfs_t
		if err := unix.Fstatfs(m, &st); err != nil {
			mnt.Close()
			return nil, fmt.Errorf("statfs overlay: %w", err)
		}
		if st.Flags&unix.ST_RDONLY != 0 {
			mnt.Close()
			return nil, fmt.Errorf("create overlay: work directory %s is not usable: %w", c.work, unix.EROFS)
		}
	}
	return mnt, nil
}

// kernelMessages reads what the kernel had to say about a file system
// context, as ": text", or "".
func kernelMessages(fsctx *os.File) string {
	var all []string
	buf := make([]byte, 1024)
	for range 16 {
		n, err := unix.Read(int(fsctx.Fd()), buf)
		if err != nil || n <= 0 {
			break
		}
		all = append(all, strings.TrimSpace(string(buf[:n])))
	}
	if len(all) == 0 {
		return ""
	}
	return ": " + strings.Join(all, "; ")
}

// openTree clones the mount at path, detached.
func openTree(path string) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open_tree %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// fdPath names an open file for the kernel's path lookups by this process.
func fdPath(f *os.File) string {
	return "/proc/self/fd/" + strconv.Itoa(int(f.Fd()))
}

// idmap maps the owners of a detached mount into a user namespace.
func idmap(tree, userns *os.File) error {
	err := unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set:  unix.MOUNT_ATTR_IDMAP,
		Userns_fd: uint64(userns.Fd()),
	})
	if err != nil {
		return fmt.Errorf("idmap %s: %w", tree.Name(), err)
	}
	return nil
}

// sameFile says whether two open files are one.
func sameFile(a, b *os.File) (bool, error) {
	var x, y unix.Stat_t
	if err := unix.Fstat(int(a.Fd()), &x); err != nil {
		return false, err
	}
	if err := unix.Fstat(int(b.Fd()), &y); err != nil {
		return false, err
	}
	return x.Dev == y.Dev && x.Ino == y.Ino, nil
}

// mapped gives a path to the pool through which the files' owners are those
// of the user namespace, and a function that ends it. One clone of the pool
// serves all layers. It must run on a thread of its own: with private mounts
// the thread gets its own mount namespace.
func (p *Pool) mapped(userns *os.File) (string, func(), error) {
	if userns != nil {
		own, err := os.Open("/proc/self/ns/user")
		if err != nil {
			return "", nil, fmt.Errorf("own user namespace: %w", err)
		}
		same, err := sameFile(own, userns)
		own.Close()
		if err != nil {
			return "", nil, fmt.Errorf("own user namespace: %w", err)
		}
		if same {
			userns = nil
		}
	}
	if userns == nil {
		return fdPath(p.root), func() {}, nil
	}
	tree, err := openTree(p.dir)
	if err != nil {
		return "", nil, err
	}
	if err := idmap(tree, userns); err != nil {
		tree.Close()
		return "", nil, err
	}
	if !p.private {
		return fdPath(tree), func() { tree.Close() }, nil
	}
	defer tree.Close()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return "", nil, fmt.Errorf("unshare mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return "", nil, fmt.Errorf("make mounts private: %w", err)
	}
	at := p.path(skeletonDir, "tmp")
	if err := unix.MoveMount(int(tree.Fd()), "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return "", nil, fmt.Errorf("attach privately: %w", err)
	}
	// The pool's own path may be longer than a mount option's value may be.
	dir, err := openDir(unix.AT_FDCWD, at)
	if err != nil {
		return "", nil, err
	}
	return fdPath(dir), func() { dir.Close() }, nil
}

// overlayOf makes the overlay of a stack whose layers are reached at base.
func overlayOf(base string, s Stack) (*os.File, error) {
	if len(s.Layers) > maxLayers {
		return nil, fmt.Errorf("%w: %d layers, at most %d", ErrTooDeep, len(s.Layers), maxLayers)
	}
	c := config{source: sourcePrefix + s.Upper, attrs: unix.MOUNT_ATTR_NODEV}
	for _, id := range s.Layers {
		c.lowers = append(c.lowers, base+"/"+layersDir+"/"+id+"/"+filesDir)
	}
	c.lowers = append(c.lowers, base+"/"+skeletonDir)
	if s.Upper != "" {
		c.upper = base + "/" + layersDir + "/" + s.Upper + "/" + filesDir
		c.work = base + "/" + layersDir + "/" + s.Upper + "/" + workDir
	}
	f, err := newOverlay(c)
	if errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return f, err
}
