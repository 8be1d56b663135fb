package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Version is the version of the cgroup interface that controls containers.
type Version int

// The versions. A host that mounts both (hybrid) is V1: the controllers are there.
const (
	V1 Version = 1
	V2 Version = 2
)

// ErrNoHierarchy means that the host mounts no usable cgroup file system.
var ErrNoHierarchy = errors.New("no usable cgroup hierarchy is mounted")

// Hierarchy is the cgroup file systems of a host.
type Hierarchy struct {
	version Version
	unified string            // mount point of cgroup2, "" when there is none
	v1      map[string]string // controller to mount point
}

// Detect finds the host's hierarchy in the mount table.
func Detect() (*Hierarchy, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	defer f.Close()
	h := &Hierarchy{v1: map[string]string{}}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		h.addMount(sc.Text())
	}
	_, freezer := h.v1["freezer"]
	switch {
	case freezer:
		h.version = V1
	case h.unified != "":
		h.version = V2
	default:
		return nil, ErrNoHierarchy
	}
	return h, nil
}

// Unified is the version 2 tree mounted at dir, whatever else is mounted.
func Unified(dir string) *Hierarchy {
	return &Hierarchy{version: V2, unified: dir}
}

// addMount takes one line of mountinfo(5) into account.
func (h *Hierarchy) addMount(line string) {
	left, right, ok := strings.Cut(line, " - ")
	fields, tail := strings.Fields(left), strings.Fields(right)
	if !ok || len(fields) < 5 || len(tail) < 3 || fields[3] != "/" {
		return
	}
	dir := fields[4]
	switch tail[0] {
	case "cgroup2":
		if h.unified == "" {
			h.unified = dir
		}
	case "cgroup":
		for _, c := range strings.Split(tail[2], ",") {
			if _, taken := h.v1[c]; !taken && c != "rw" && c != "ro" {
				h.v1[c] = dir
			}
		}
	}
}

// Version says which interface is in use.
func (h *Hierarchy) Version() Version { return h.version }

// dirs lists the directory of path in every tree, hybrid ones included.
func (h *Hierarchy) dirs(path string) []string {
	var out []string
	for _, m := range h.v1 {
		out = append(out, filepath.Join(m, path))
	}
	if h.unified != "" {
		out = append(out, filepath.Join(h.unified, path))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Children names the groups directly below path, in any tree, sorted.
func (h *Hierarchy) Children(path string) ([]string, error) {
	var out []string
	for _, d := range h.dirs(path) {
		entries, err := os.ReadDir(d)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() {
				out = append(out, e.Name())
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// Remove removes path and every group below it from every tree. It fails with
// EBUSY while a process is in one of them; nil when there is none.
func (h *Hierarchy) Remove(path string) error {
	var errs []error
	for _, d := range h.dirs(path) {
		errs = append(errs, removeTree(d))
	}
	return errors.Join(errs...)
}

func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}
