package criu_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"cairn/criu"

	"golang.org/x/sys/unix"
)

// newCRIU makes a CRIU on the built programs; change may alter the options.
func newCRIU(t testing.TB, change func(*criu.Options)) *criu.CRIU {
	t.Helper()
	o := criu.Options{Bundle: criu.Bundle{Dir: program + "/criu"}, Helper: program + "/cairn-criu"}
	if change != nil {
		change(&o)
	}
	c, err := criu.New(o)
	check(t, err)
	t.Cleanup(func() { check(t, c.Close()) })
	return c
}

// newImages makes an empty directory for images.
func newImages(t testing.TB) *os.File {
	t.Helper()
	f, err := os.Open(t.TempDir())
	check(t, err)
	t.Cleanup(func() { f.Close() })
	return f
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

// sameRights checks that every process and thread that was there before has the rights it
// had, and that nobody has any that nobody had.
func sameRights(t testing.TB, was, is map[int]string) {
	t.Helper()
	any := map[string]bool{}
	for pid, r := range was {
		any[r] = true
		if is[pid] != r {
			t.Errorf("rights of %d were\n%s\nand are\n%s", pid, r, is[pid])
		}
	}
	for pid, r := range is {
		if !any[r] {
			t.Errorf("%d has rights that nobody had:\n%s", pid, r)
		}
	}
}

// rights are what the kernel says that each process and thread may do, by pid inside.
func (b *box) rights(t testing.TB) map[int]string {
	t.Helper()
	want, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", b.pid))
	check(t, err)
	found := map[int]string{}
	dirs, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	check(t, err)
	for _, d := range dirs {
		ns, err := os.Readlink(d + "/ns/pid")
		if err != nil || ns != want {
			continue
		}
		if strings.HasPrefix(d, fmt.Sprintf("/proc/%d/", b.pid)) {
			continue // PID 1 is not restored
		}
		user, err := os.Readlink(d + "/ns/user")
		check(t, err)
		own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", b.pid))
		check(t, err)
		if user != own {
			t.Errorf("%s is in another user namespace", d)
		}
		text, err := os.ReadFile(d + "/status")
		check(t, err)
		var rights []string
		in := 0
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			switch name {
			case "Uid", "Gid":
				value = b.shift(t, value)
				fallthrough
			case "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters", "SigIgn", "Umask":
				rights = append(rights, name+strings.TrimSpace(value))
			case "NSpid":
				f := strings.Fields(value)
				in, err = strconv.Atoi(f[len(f)-1])
				check(t, err)
			}
		}
		groups, err := os.ReadFile(d + "/cgroup")
		check(t, err)
		found[in] = strings.Join(rights, " ") + "\n" + strings.ReplaceAll(string(groups), b.name, "BOX")
	}
	return found
}

// shift makes ids of the host ids inside.
func (b *box) shift(t testing.TB, hostIDs string) string {
	t.Helper()
	var in []string
	for _, f := range strings.Fields(hostIDs) {
		n, err := strconv.Atoi(f)
		check(t, err)
		if n < b.base || n >= b.base+ids {
			t.Errorf("host id %d is outside of the range of %s", n, b.name)
		}
		in = append(in, strconv.Itoa(n-b.base))
	}
	return strings.Join(in, " ")
}

// states are the letters of proc_pid_stat(5) for each process of the tree, by pid inside.
func (b *box) states(t testing.TB) map[int]string {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d/root/proc", b.pid)
	entries, err := os.ReadDir(proc)
	check(t, err)
	found := map[int]string{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join(proc, e.Name(), "stat"))
		if err != nil {
			continue
		}
		f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if f[1] != "0" || pid == 1 { // CRIU was put there from outside
			found[pid] = f[0]
		}
	}
	return found
}
