package overlay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Features is what was found out, by trying, about the pool's place.
type Features struct {
	// FileSystem is "ext4", "xfs", "btrfs", "tmpfs" or a magic number.
	FileSystem string
	// Reflink: files are copied by sharing their blocks.
	Reflink bool
	// ProjectQuota: limits on bytes and inodes of an upper are enforced.
	ProjectQuota bool
	// DetachedIDMap: overlayfs takes layers from detached mounts (Linux
	// 6.15 and later); without it every overlay is made in a private mount
	// namespace, which takes longer.
	DetachedIDMap bool
}

func (p *Pool) probe() (Features, error) {
	var f Features
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(p.root.Fd()), &st); err != nil {
		return f, fmt.Errorf("overlay: probe: %w", err)
	}
	switch uint32(st.Type) {
	case unix.EXT4_SUPER_MAGIC:
		f.FileSystem = "ext4"
	case unix.XFS_SUPER_MAGIC:
		f.FileSystem = "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		f.FileSystem = "btrfs"
	case unix.TMPFS_MAGIC:
		f.FileSystem = "tmpfs"
	default:
		f.FileSystem = fmt.Sprintf("%#x", uint32(st.Type))
	}
	dir := p.staging("probe")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return f, fmt.Errorf("overlay: probe: %w", err)
	}
	defer os.RemoveAll(dir)
	var err error
	if f.Reflink, err = probeReflink(dir); err != nil {
		return f, fmt.Errorf("overlay: probe reflinks: %w", err)
	}
	f.ProjectQuota = p.probeQuota(dir)
	f.DetachedIDMap = p.probeDetached()
	return f, nil
}

func probeReflink(dir string) (bool, error) {
	a := filepath.Join(dir, "a")
	if err := os.WriteFile(a, make([]byte, 4096), 0o600); err != nil {
		return false, err
	}
	from, err := os.Open(a)
	if err != nil {
		return false, err
	}
	defer from.Close()
	to, err := os.Create(filepath.Join(dir, "b"))
	if err != nil {
		return false, err
	}
	defer to.Close()
	err = unix.IoctlFileClone(int(to.Fd()), int(from.Fd()))
	for _, no := range []error{unix.EOPNOTSUPP, unix.ENOTTY, unix.EINVAL, unix.EXDEV} {
		if errors.Is(err, no) {
			return false, nil
		}
	}
	return err == nil, err
}

// probeDetached makes an overlay whose layers are reached through a detached
// mount. Kernels that can't, refuse to clone the layer.
func (p *Pool) probeDetached() bool {
	tree, err := openTree(p.dir)
	if err != nil {
		return false
	}
	defer tree.Close()
	base := fdPath(tree)
	o, err := newOverlay(config{
		source: "cairn-probe",
		lowers: []string{filepath.Join(base, skeletonDir), filepath.Join(base, stagingDir)},
	})
	if err != nil {
		return false
	}
	o.Close()
	return true
}
