package files

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// testBase is 0 inside in the tests.
const testBase = 1_000_000

// fixture is a sandbox's root as in production: an overlay of idmapped layers.
type fixture struct {
	*Root
	upper string // the upper layer on the host, unshifted
	lower string
}

// newFixture mounts a detached overlay over an empty upper and a lower layer that
// fill fills.
func newFixture(t testing.TB, fill func(lower string), limits Limits) *fixture {
	t.Helper()
	mnt, upper, lower := mountOverlay(t, fill)
	return &fixture{
		Root:  New(mnt, Options{UIDBase: testBase, GIDBase: testBase, Limits: limits}),
		upper: upper, lower: lower,
	}
}

func mountOverlay(t testing.TB, fill func(lower string)) (mnt *os.File, upper, lower string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("this test needs root")
	}
	dir := t.TempDir()
	upper, lower = filepath.Join(dir, "u", "fs"), filepath.Join(dir, "l")
	for _, d := range []string{upper, filepath.Join(dir, "u", "work"), lower} {
		must(t, os.MkdirAll(d, 0o755))
	}
	must(t, os.Chmod(dir, 0o755))
	if fill != nil {
		fill(lower)
	}
	userns := newUserNS(t)
	type result struct {
		fd  int
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the credentials end with the thread
		fd, err := overlayFD(userns, filepath.Join(dir, "u"), lower)
		done <- result{fd, err}
	}()
	res := <-done
	must(t, res.err)
	mnt = os.NewFile(uintptr(res.fd), "overlay")
	t.Cleanup(func() { _ = mnt.Close() })
	return mnt, upper, lower
}

func overlayFD(userns int, up, lower string) (int, error) {
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, secbitNoSetuidFixup, 0, 0, 0); err != nil {
		return -1, err
	}
	_, _ = unix.SetfsgidRetGid(testBase)
	_, _ = unix.SetfsuidRetUid(testBase)
	idmapped := func(path string) (int, error) {
		fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return -1, err
		}
		return fd, unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH,
			&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns)})
	}
	l, err := idmapped(lower)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(l) }()
	u, err := idmapped(up)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(u) }()
	o, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(o) }()
	uppath := procPath(fd(u))
	for _, kv := range [][2]string{
		{"lowerdir+", procPath(fd(l))},
		{"upperdir", uppath + "/fs"},
		{"workdir", uppath + "/work"},
		// Without it, each unmount waits for the disk.
		{"volatile", ""},
		{"index", "off"},
		{"metacopy", "off"},
		{"redirect_dir", "off"},
	} {
		set := unix.FsconfigSetString
		if kv[1] == "" {
			set = func(fd int, key, _ string) error { return unix.FsconfigSetFlag(fd, key) }
		}
		if err := set(o, kv[0], kv[1]); err != nil {
			return -1, err
		}
	}
	if err := unix.FsconfigCreate(o); err != nil {
		return -1, err
	}
	return unix.Fsmount(o, unix.FSMOUNT_CLOEXEC, 0)
}

// newUserNS returns a user namespace with the tests' id range.
func newUserNS(t testing.TB) int {
	t.Helper()
	cmd := exec.Command("cat") // lives until its stdin is closed
	stdin, err := cmd.StdinPipe()
	must(t, err)
	m := []syscall.SysProcIDMap{{ContainerID: 0, HostID: testBase, Size: IDs}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: m, GidMappings: m}
	must(t, cmd.Start())
	defer func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	}()
	fd, err := unix.Open("/proc/"+strconv.Itoa(cmd.Process.Pid)+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// hostRoot is a Root of a plain directory, unshifted.
func hostRoot(t testing.TB, limits Limits) (*Root, string) {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Open(dir)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return New(f, Options{Limits: limits}), dir
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t testing.TB, err error, code Code) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Code != code || !errors.Is(err, code) {
		t.Fatalf("got error %v, want code %s", err, code)
	}
}

// soon fails the test when fn does not return: an operation that hangs on a FIFO.
func soon(t testing.TB, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); fn() }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("the operation hangs")
	}
}

func (f *fixture) put(t testing.TB, path, content string) {
	t.Helper()
	_, err := f.Write(context.Background(), path, strings.NewReader(content), WriteOptions{Parents: true})
	must(t, err)
}

func get(t testing.TB, r *Root, path string) string {
	t.Helper()
	f, err := r.Open(context.Background(), path)
	must(t, err)
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(f)
	must(t, err)
	return string(b)
}

// ownerOnHost asks the layer itself.
func ownerOnHost(t testing.TB, path string) (uid, gid uint32, mode uint32) {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return st.Uid, st.Gid, st.Mode & 0o7777
}

// noTemps fails when a temporary file is left below dir.
func noTemps(t testing.TB, dir string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		if strings.HasPrefix(filepath.Base(p), ".cairn-") {
			t.Errorf("left behind: %s", p)
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}))
}

func ptr[T any](v T) *T { return &v }
