package criu

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// mapImages gives the directory of images as CRIU is to see it: with its owners mapped
// into the container's user namespace and, for a restore, read-only.
func mapImages(pid int, images *os.File, readOnly bool) (*os.File, error) {
	userns, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/user")
	if err != nil {
		return nil, &Error{Code: CodeGone, PID: 1, Message: "the sandbox has ended", Err: err}
	}
	defer userns.Close()
	fd, err := unix.OpenTree(int(images.Fd()), "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open the directory of images: %w", err)
	}
	tree := os.NewFile(uintptr(fd), images.Name())
	attr := unix.MountAttr{
		Attr_set:  unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC,
		Userns_fd: uint64(userns.Fd()),
	}
	if readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		tree.Close()
		return nil, fmt.Errorf("map the owners of images (does the file system support idmapped mounts?): %w", err)
	}
	return tree, nil
}
