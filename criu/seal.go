package criu

import (
	"bytes"
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

// Images say what a process may do once it is restored: they are privileged input. Seal
// makes the manifest of a directory of images, right after the dump; Verify compares. Only
// what Verify approves of may be restored.

// Entry is one file of a manifest.
type Entry struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Manifest lists the files of a directory of images, by name. Its JSON is canonical.
type Manifest struct {
	Files []Entry `json:"files"`
	Bytes int64   `json:"bytes"` // of all files
}

// Digest is the SHA-256 of the manifest's JSON, in hexadecimal.
func (m Manifest) Digest() string {
	sum := sha256.Sum256(m.Encode())
	return hex.EncodeToString(sum[:])
}

// Encode is the manifest as JSON.
func (m Manifest) Encode() []byte {
	// Strings and numbers can always be written.
	b, _ := json.Marshal(m)
	return b
}

// ParseManifest reads what Encode wrote.
func ParseManifest(b []byte) (Manifest, error) {
	var m Manifest
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return m, &Error{Code: CodeImages, Resource: "manifest", Message: "it can't be read", Err: err}
	}
	return m, nil
}

// isPages says whether a file of that name holds memory: it is most of the bytes, and can
// claim nothing.
func isPages(name string) bool { return strings.HasPrefix(name, "pages-") }

// Seal makes the manifest of the images, and writes them to the disk when sync is set.
func Seal(images *os.File, sync bool) (Manifest, error) {
	var m Manifest
	names, err := list(images)
	if err != nil {
		return m, err
	}
	for _, name := range names {
		e, err := sum(images, name, sync)
		if err != nil {
			return Manifest{}, err
		}
		m.Files = append(m.Files, e)
		m.Bytes += e.Bytes
	}
	if sync {
		if err := images.Sync(); err != nil {
			return Manifest{}, fmt.Errorf("write the directory of images to the disk: %w", err)
		}
	}
	return m, nil
}

// Verify compares the images with their manifest: CodeImages. With quick, memory is
// compared by its size alone; everything that a process's rights depend on is read.
func Verify(images *os.File, m Manifest, quick bool) error {
	names, err := list(images)
	if err != nil {
		return err
	}
	if len(names) != len(m.Files) {
		return &Error{Code: CodeImages, Resource: "images", Message: fmt.Sprintf("there are %d files in the place of %d", len(names), len(m.Files))}
	}
	for i, want := range m.Files {
		if names[i] != want.Name {
			return &Error{Code: CodeImages, Resource: "image " + names[i], Message: "it does not belong there"}
		}
		if quick && isPages(want.Name) {
			var st unix.Stat_t
			if err := unix.Fstatat(int(images.Fd()), want.Name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return fmt.Errorf("look at image %s: %w", want.Name, err)
			}
			if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != want.Bytes {
				return altered(want.Name)
			}
			continue
		}
		got, err := sum(images, want.Name, false)
		if err != nil {
			return err
		}
		if got != want {
			return altered(want.Name)
		}
	}
	return nil
}

func altered(name string) error {
	return &Error{Code: CodeImages, Resource: "image " + name, Message: "it is not what was written at the dump"}
}

// list gives the names in the directory, sorted.
func list(images *os.File) ([]string, error) {
	// A descriptor of its own: the caller's keeps its position.
	fd, err := unix.Openat(int(images.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("read the directory of images: %w", err)
	}
	d := os.NewFile(uintptr(fd), images.Name())
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("read the directory of images: %w", err)
	}
	sort.Strings(names)
	return names, nil
}

func sum(images *os.File, name string, sync bool) (_ Entry, err error) {
	fd, err := unix.Openat(int(images.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, unix.ELOOP) {
			return Entry{}, altered(name)
		}
		return Entry{}, fmt.Errorf("open image %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return Entry{}, fmt.Errorf("open image %s: %w", name, err)
	}
	if !fi.Mode().IsRegular() {
		return Entry{}, altered(name)
	}
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err == nil && sync {
		err = f.Sync()
	}
	if err != nil {
		return Entry{}, fmt.Errorf("read image %s: %w", name, err)
	}
	return Entry{Name: name, Bytes: n, SHA256: hex.EncodeToString(h.Sum(nil))}, nil
}
