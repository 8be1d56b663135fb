package cgroup

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Prime makes freezing fast until release is called, by holding one empty group,
// at path, frozen. The version 1 freezer patches the kernel's code when the first
// group of the host is frozen, and back when the last one is thawed, which stops every
// CPU: 0.5 to 1 ms instead of 0.07. It is no error that the group is there. With
// version 2 there is nothing to do.
func (h *Hierarchy) Prime(path string) (release func() error, err error) {
	if h.version == V2 {
		return func() error { return nil }, nil
	}
	dir := filepath.Join(h.v1["freezer"], path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	release = func() error {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		return nil
	}
	if err := writeFile(dir, "freezer.state", "FROZEN"); err != nil {
		return nil, errors.Join(err, release())
	}
	return release, nil
}
