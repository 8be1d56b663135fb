package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// File is what matters of one path.
type File struct {
	Path     []byte
	Type     string // "file", "directory", "symlink", "fifo", "socket", "device", or what is wrong
	Mode     uint32
	UID, GID uint32
	Size     int64             // regular files
	Sum      string            // SHA-256, regular files
	Target   []byte            // symbolic links
	Xattrs   map[string][]byte // user's
	Same     []byte            // the first path that is the same file, where there are several
	Mtime    int64             // seconds, where it was set on purpose
}

func list(dir string) ([]File, error) {
	var files []File
	first := map[uint64]int{} // inode -> index of the first path
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil && d == nil { // not even its directory is there
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			files = append(files, File{Path: []byte(p), Type: "listed, but " + errName(err)})
			return nil
		}
		f := File{Path: []byte(p), Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid}
		if st.Mtim.Nsec == setNanos {
			f.Mtime = st.Mtim.Sec
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			f.Type, f.Size = "file", st.Size
			if i, ok := first[st.Ino]; ok {
				f.Same, files[i].Same = files[i].Path, files[i].Path
			} else {
				first[st.Ino] = len(files)
			}
			if f.Sum, err = sum(p); err != nil {
				return err
			}
		case unix.S_IFDIR:
			f.Type = "directory"
		case unix.S_IFLNK:
			f.Type = "symlink"
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			f.Target = []byte(target)
		case unix.S_IFIFO:
			f.Type = "fifo"
		case unix.S_IFSOCK:
			f.Type = "socket"
		default:
			f.Type = "device"
		}
		attrs, err := xattrs(p)
		if err != nil {
			return err
		}
		for name, value := range attrs {
			if f.Xattrs == nil {
				f.Xattrs = map[string][]byte{}
			}
			f.Xattrs[name] = []byte(value)
		}
		files = append(files, f)
		return nil
	})
	return files, err
}

func sum(p string) (string, error) {
	f, err := os.Open(p)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// xattrs gives the extended attributes in the user's namespace.
func xattrs(p string) (map[string]string, error) {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(p, buf)
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m := map[string]string{}
	for _, name := range splitNul(append([]byte(nil), buf[:n]...)) {
		if !strings.HasPrefix(name, "user.") {
			continue
		}
		n, err := unix.Lgetxattr(p, name, buf)
		if err != nil {
			return nil, err
		}
		m[name] = string(buf[:n])
	}
	return m, nil
}
