package runtime

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// removeTree removes name and all below it from the directory parent. What is there was
// made by somebody hostile: nothing is followed, and directories nested without
// end cost neither descriptors nor stack, because each level is moved up to
// parent before it is emptied. nil when there is nothing.
func removeTree(parent, name string) error {
	dir, err := unix.Open(parent, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	defer unix.Close(dir)
	gone, err := removeLeaf(dir, name)
	if gone || err != nil {
		return err
	}
	moved := 0
	for queue := []string{name}; len(queue) > 0; {
		last := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		found, err := empty(dir, last, func() string { moved++; return ".rm" + strconv.Itoa(moved) })
		if err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
		if err := unix.Unlinkat(dir, last, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove %s: %w", name, err)
		}
		queue = append(queue, found...)
	}
	return nil
}

// empty removes what is in the directory name of dir; directories in it are moved
// to dir under new names, which it returns.
func empty(dir int, name string, next func() string) (moved []string, err error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	for {
		names, err := f.Readdirnames(1024)
		for _, n := range names {
			gone, err := removeLeaf(fd, n)
			if err != nil {
				return nil, err
			}
			if gone {
				continue
			}
			for {
				to := next()
				err = unix.Renameat2(fd, n, dir, to, unix.RENAME_NOREPLACE)
				if errors.Is(err, unix.EEXIST) {
					continue // left by a removal that was cut short
				}
				if err != nil {
					return nil, err
				}
				moved = append(moved, to)
				break
			}
		}
		if len(names) == 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				return nil, err
			}
			return moved, nil
		}
	}
}

// removeLeaf removes what is not a directory; false says that it is one.
func removeLeaf(dir int, name string) (bool, error) {
	err := unix.Unlinkat(dir, name, 0)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return true, nil
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.EPERM):
		return false, nil
	}
	return false, err
}
