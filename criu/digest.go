package criu

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Digest gives what Verify with quick compares, as one SHA-256 in hexadecimal, and the
// size of all images in bytes. It can be had in milliseconds right after a dump, and before
// a restore: of memory it covers the sizes only, of all else every byte. CRIU's figures,
// which are the last that it writes, are left out.
func Digest(images *os.File) (digest string, bytes int64, err error) {
	var m Manifest
	if err := m.add(images, "", 1); err != nil {
		return "", 0, err
	}
	return m.Digest(), m.Bytes, nil
}

// Compacted images have at most so many directories on top of each other.
const (
	parentDir = "parent"
	maxDepth  = 3
)

// add lists the files of one directory and of its parent, if it has one.
func (m *Manifest) add(dir *os.File, prefix string, depth int) error {
	names, err := list(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == "stats-dump" {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("look at image %s: %w", name, err)
		}
		e := Entry{Name: name, Bytes: st.Size}
		switch kind := st.Mode & unix.S_IFMT; {
		case kind == unix.S_IFDIR && name == parentDir && depth < maxDepth:
			if err := m.addParent(dir, prefix, depth); err != nil {
				return err
			}
			continue
		case kind != unix.S_IFREG:
			return altered(name)
		case !isPages(name):
			if e, err = sum(dir, name, false); err != nil {
				return err
			}
		}
		e.Name = prefix + name
		m.Files = append(m.Files, e)
		m.Bytes += e.Bytes
	}
	return nil
}

func (m *Manifest) addParent(dir *os.File, prefix string, depth int) error {
	fd, err := unix.Openat(int(dir.Fd()), parentDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the images of %s: %w", prefix+parentDir, err)
	}
	up := os.NewFile(uintptr(fd), parentDir)
	defer up.Close()
	return m.add(up, prefix+parentDir+"/", depth+1)
}
