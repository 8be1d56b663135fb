package overlay

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// snapshot is what a tree looks like: everything that a checkpoint promises
// to bring back, by path.
type snapshot map[string]string

// take walks a root by itself, without the code under test, and leaves out
// what is mounted on it.
func take(t testing.TB, root *os.File, base uint32) snapshot {
	t.Helper()
	s := snapshot{}
	groups := map[uint64][]string{}
	var st unix.Statx_t
	if err := unix.Statx(int(root.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		t.Fatal(err)
	}
	var visit func(path string)
	visit = func(path string) {
		line, sx, err := describeForTest(root, path, base, st.Mnt_id)
		if err != nil {
			t.Fatalf("%q: %v", path, err)
		}
		if line == "" {
			return
		}
		s[path] = line
		if sx.Mode&unix.S_IFMT == unix.S_IFDIR {
			d, err := os.Open(fdPath(root) + "/" + path)
			if err != nil {
				t.Fatal(err)
			}
			names, err := d.Readdirnames(-1)
			d.Close()
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range names {
				visit(path + "/" + n)
			}
			return
		}
		groups[sx.Ino] = append(groups[sx.Ino], path)
	}
	visit(".")
	for _, g := range groups {
		sort.Strings(g)
		for _, path := range g {
			if len(g) > 1 {
				s[path] += " same=" + g[0]
			}
		}
	}
	return s
}

func describeForTest(root *os.File, path string, base uint32, mnt uint64) (string, unix.Statx_t, error) {
	var sx unix.Statx_t
	full := fdPath(root) + "/" + path
	if path == "." {
		full = fdPath(root) + "/."
	}
	err := unix.Statx(unix.AT_FDCWD, full, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &sx)
	if err != nil {
		return "", sx, err
	}
	if sx.Mnt_id != mnt || path == "./.cairn" || path == "./proc" || path == "./dev" || path == "./run/cairn" {
		return "", sx, nil
	}
	line := fmt.Sprintf("%o %d:%d mtime=%d.%09d", sx.Mode, sx.Uid-base, sx.Gid-base, sx.Mtime.Sec, sx.Mtime.Nsec)
	switch sx.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		f, err := os.Open(full)
		if err != nil {
			return "", sx, err
		}
		defer f.Close()
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			return "", sx, err
		}
		line += fmt.Sprintf(" size=%d %x", sx.Size, h.Sum(nil))
	case unix.S_IFLNK:
		l, err := os.Readlink(full)
		if err != nil {
			return "", sx, err
		}
		line += fmt.Sprintf(" -> %q", l)
	case unix.S_IFCHR, unix.S_IFBLK:
		line += fmt.Sprintf(" %d:%d", sx.Rdev_major, sx.Rdev_minor)
	}
	names, err := grow(func(b []byte) (int, error) { return unix.Llistxattr(full, b) })
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return "", sx, err
	}
	list := strings.Split(string(names), "\x00")
	sort.Strings(list)
	for _, n := range list {
		if n == "" || strings.HasPrefix(n, "trusted.overlay.") {
			continue
		}
		v, err := grow(func(b []byte) (int, error) { return unix.Lgetxattr(full, n, b) })
		if err != nil {
			return "", sx, fmt.Errorf("%s: %w", n, err)
		}
		line += fmt.Sprintf(" %s=%x", n, v)
	}
	return line, sx, nil
}

// snapshotOf is the tree of a container.
func (c *container) snapshot() snapshot {
	c.t.Helper()
	root := c.root()
	defer root.Close()
	return take(c.t, root, c.base)
}

// viewed is the tree that a view of layers shows.
func viewed(t testing.TB, p *Pool, layers []string) snapshot {
	t.Helper()
	v, err := p.View(layers)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	return take(t, v.Root(), 0)
}

// mustEqual compares two trees.
func mustEqual(t testing.TB, what string, got, want snapshot) {
	t.Helper()
	if d := unlike(got, want); d != "" {
		t.Fatalf("%s:%s", what, d)
	}
}

func unlike(got, want snapshot) string {
	var b strings.Builder
	for path, w := range want {
		if g, ok := got[path]; !ok {
			fmt.Fprintf(&b, "\n%q is missing: %s", path, w)
		} else if g != w {
			fmt.Fprintf(&b, "\n%q\n  is       %s\n  expected %s", path, g, w)
		}
	}
	for path, g := range got {
		if _, ok := want[path]; !ok {
			fmt.Fprintf(&b, "\n%q is too many: %s", path, g)
		}
	}
	return b.String()
}

// fresh makes an upper.
func fresh(t testing.TB, p *Pool, id string) string {
	t.Helper()
	if err := p.CreateUpper(id, Quota{}); err != nil {
		t.Fatal(err)
	}
	return id
}

// attach attaches a fresh upper and closes what it replaced.
func (c *container) attach(p *Pool, upper string, layers ...string) {
	c.t.Helper()
	r, err := p.Attach(context.Background(), c.target(), Stack{Upper: upper, Layers: layers})
	if err != nil {
		c.t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		c.t.Fatal(err)
	}
}
