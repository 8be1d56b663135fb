package helper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// CRIU brings a deleted file back under its former path, for as long as it takes to open
// it. If there is another file by now, it takes another path, but several processes that
// open the file at the same time get in each other's way then. So the files in the images
// that are such have another path from the beginning.

const remapFile = "remap-fpath.img"

// freePaths gives deleted files paths that are not taken in the container of that PID 1.
func freePaths(images *os.File, pid int) error {
	ghosts, err := ghostIDs(images)
	if err != nil || len(ghosts) == 0 {
		return err
	}
	root, err := os.OpenFile("/proc/"+strconv.Itoa(pid)+"/root", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer root.Close()
	b, err := readImage(images, filesFile)
	if err != nil {
		return err
	}
	out := append([]byte(nil), b[:headerLen]...)
	changed := false
	err = entries(b, func(e []byte) error {
		const reg = 3
		made, err := editFields(e, func(n protowire.Number, whole, content []byte, _ uint64) ([]byte, error) {
			if n != reg {
				return whole, nil
			}
			made, err := freePath(content, ghosts, root)
			if err != nil || made == nil {
				return whole, err
			}
			changed = true
			return protowire.AppendBytes(protowire.AppendTag(nil, reg, protowire.BytesType), made), nil
		})
		out = append(binary.LittleEndian.AppendUint32(out, uint32(len(made))), made...)
		return err
	})
	if err != nil || !changed {
		return err
	}
	return replaceImage(images, filesFile, out)
}

// ghostIDs lists the ids of open files that were deleted.
func ghostIDs(images *os.File) (map[uint64]bool, error) {
	b, err := readImage(images, remapFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ids := map[uint64]bool{}
	err = entries(b, func(e []byte) error {
		const file, kind, ghost = 1, 3, 1
		var id, what uint64 = 0, ghost
		err := fields(e, func(n protowire.Number, _, _ []byte, v uint64) error {
			switch n {
			case file:
				id = v
			case kind:
				what = v
			default:
			}
			return nil
		})
		if what == ghost {
			ids[id] = true
		}
		return err
	})
	return ids, err
}

// freePath does so for one file; nil when it may stay as it is.
func freePath(reg []byte, ghosts map[uint64]bool, root *os.File) ([]byte, error) {
	const idField, nameField = 1, 6
	var id uint64
	var name string
	err := fields(reg, func(n protowire.Number, _, content []byte, v uint64) error {
		switch n {
		case idField:
			id = v
		case nameField:
			name = string(content)
		default:
		}
		return nil
	})
	if err != nil || !ghosts[id] || !exists(root, name) {
		return nil, err
	}
	const most = 1000
	free := ""
	for i := range most {
		if free = fmt.Sprintf("%s.%d", name, i); !exists(root, free) {
			break
		}
	}
	return editFields(reg, func(n protowire.Number, whole, _ []byte, _ uint64) ([]byte, error) {
		if n != nameField {
			return whole, nil
		}
		return protowire.AppendString(protowire.AppendTag(nil, nameField, protowire.BytesType), free), nil
	})
}

// exists says whether there is anything at a path of the container's.
func exists(root *os.File, name string) bool {
	fd, err := unix.Openat2(int(root.Fd()), strings.TrimPrefix(name, "/"), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}
