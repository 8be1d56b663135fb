package criu

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// Compacted images have at most so many directories on top of each other: see criu/pages.
const (
	parentDir = "parent"
	maxDepth  = 3
)

// listed is one file of a list, which is made into a digest.
type listed struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // "" for memory
}

type list struct {
	Files []listed `json:"files"`
	Bytes int64    `json:"bytes"` // of all files
}

// Digest gives one SHA-256 of a directory of images, in hexadecimal, and the size of all
// images in bytes. Images say what a process may do once it is restored, they are privileged
// input: only those that still have the digest that they had right after the dump may be
// restored. It can be had in milliseconds: of memory, which is most of the bytes and can
// claim nothing, it covers the sizes only, of all else every byte. CRIU's figures, which are
// the last that it writes, are left out. CodeImages: there is something that is no image.
func Digest(images *os.File) (digest string, bytes int64, err error) {
	var l list
	if err := l.add(images, "", 1); err != nil {
		return "", 0, err
	}
	// Strings and numbers can always be written.
	text, _ := json.Marshal(l)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), l.Bytes, nil
}

// isPages says whether a file of that name holds memory.
func isPages(name string) bool { return strings.HasPrefix(name, "pages-") }

// add lists the files of one directory and of its parent, if it has one.
func (l *list) add(dir *os.File, prefix string, depth int) error {
	names, err := namesIn(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == "stats-dump" {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("look at image %s: %w", prefix+name, err)
		}
		e := listed{Name: prefix + name, Bytes: st.Size}
		switch kind := st.Mode & unix.S_IFMT; {
		case kind == unix.S_IFDIR && name == parentDir && depth < maxDepth:
			if err := l.addParent(dir, prefix, depth); err != nil {
				return err
			}
			continue
		case kind != unix.S_IFREG:
			return altered(e.Name)
		case !isPages(name):
			if e.Bytes, e.SHA256, err = sum(dir, name); err != nil {
				return err
			}
		}
		l.Files = append(l.Files, e)
		l.Bytes += e.Bytes
	}
	return nil
}

func (l *list) addParent(dir *os.File, prefix string, depth int) error {
	fd, err := unix.Openat(int(dir.Fd()), parentDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the images of %s: %w", prefix+parentDir, err)
	}
	up := os.NewFile(uintptr(fd), parentDir)
	defer up.Close()
	return l.add(up, prefix+parentDir+"/", depth+1)
}

func altered(name string) error {
	return &Error{Code: CodeImages, Resource: "image " + name, Message: "it is not what was written at the dump"}
}

// namesIn gives the names in the directory, sorted.
func namesIn(dir *os.File) ([]string, error) {
	// A descriptor of its own: the caller's keeps its position.
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("read the directory of images: %w", err)
	}
	d := os.NewFile(uintptr(fd), dir.Name())
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("read the directory of images: %w", err)
	}
	sort.Strings(names)
	return names, nil
}

// sum gives the size and the SHA-256 of a file.
func sum(dir *os.File, name string) (bytes int64, digest string, err error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, unix.ELOOP) {
			return 0, "", altered(name)
		}
		return 0, "", fmt.Errorf("open image %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return 0, "", fmt.Errorf("open image %s: %w", name, err)
	}
	if !fi.Mode().IsRegular() {
		return 0, "", altered(name)
	}
	h := sha256.New()
	if bytes, err = io.Copy(h, f); err != nil {
		return 0, "", fmt.Errorf("read image %s: %w", name, err)
	}
	return bytes, hex.EncodeToString(h.Sum(nil)), nil
}
