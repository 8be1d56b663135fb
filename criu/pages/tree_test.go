package pages_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cairn/criu"

	"golang.org/x/sys/unix"
)

// newCRIU makes a CRIU on the built programs.
func newCRIU(t testing.TB) *criu.CRIU {
	t.Helper()
	o := criu.Options{Bundle: criu.Bundle{Dir: program + "/criu"}, Helper: program + "/cairn-criu"}
	c, err := criu.New(o)
	check(t, err)
	t.Cleanup(func() { check(t, c.Close()) })
	return c
}

func (b *box) target() criu.Target { return criu.Target{PID: b.pid} }

// clear ends everything in the sandbox but PID 1.
func (b *box) clear(t testing.TB, c *criu.CRIU) {
	t.Helper()
	check(t, b.HoldStem())
	check(t, c.Clear(t.Context(), b.target()))
}

// release lets PID 1 find the restored stem, and waits until it answers.
func (b *box) release(t testing.TB) {
	t.Helper()
	check(t, b.ReleaseStem())
	check(t, unix.Kill(b.pid, unix.SIGUSR1))
	_, err := b.Ping(t.Context())
	check(t, err)
}

// restore puts the tree of the images in the place of what runs in the sandbox.
func (b *box) restore(t testing.TB, c *criu.CRIU, images *os.File) criu.RestoreStats {
	t.Helper()
	b.clear(t, c)
	s, err := c.Restore(t.Context(), b.target(), images, criu.RestoreOptions{})
	if err != nil {
		t.Fatalf("%s: %v", b.name, err)
	}
	b.release(t)
	return s
}

// fork makes a sandbox with the files of another one, as they are, and no process but PID 1.
// files are those that a dump said must be there.
func (b *box) fork(t testing.TB, c *criu.CRIU, files []criu.File) *box {
	t.Helper()
	f := newBox(t)
	f.clear(t, c)
	// Upper layers in tests are owned by the sandbox: the copy has to be shifted. It goes
	// through the mounted overlay, which may not be changed below.
	out, err := exec.Command("cp", "-a", b.dir+"/upper/.", f.dir+"/root/").CombinedOutput()
	if err != nil {
		t.Fatalf("copy files: %v: %s", err, out)
	}
	check(t, filepath.WalkDir(f.dir+"/upper", func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		if int(st.Uid) >= b.base && int(st.Uid) < b.base+ids {
			mounted := f.dir + "/root" + strings.TrimPrefix(path, f.dir+"/upper")
			return os.Lchown(mounted, int(st.Uid)-b.base+f.base, int(st.Gid)-b.base+f.base)
		}
		return nil
	}))
	for _, file := range files {
		name, ok := strings.CutPrefix(file.Path, "/run/cairn/")
		if !ok {
			t.Fatalf("file %s", file.Path)
		}
		copyFile(t, filepath.Join(b.dir, "io", name), filepath.Join(f.dir, "io", name), file.Size, f.base)
	}
	return f
}

func copyFile(t testing.TB, from, to string, size int64, owner int) {
	t.Helper()
	check(t, os.MkdirAll(filepath.Dir(to), 0o700))
	for d := filepath.Dir(to); filepath.Base(d) != "io"; d = filepath.Dir(d) {
		check(t, os.Chown(d, owner, owner))
	}
	src, err := os.Open(from)
	check(t, err)
	defer src.Close()
	dst, err := os.Create(to)
	check(t, err)
	defer dst.Close()
	_, err = io.CopyN(dst, src, size)
	check(t, err)
	check(t, dst.Chown(owner, owner))
	check(t, dst.Chmod(0o600))
}
