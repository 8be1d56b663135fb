package files

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// mountedRoot is a Root in the mount namespace of another process, as a sandbox's
// is: /proc and the file /etc/resolv.conf are mount points there.
func mountedRoot(t *testing.T) (r *Root, dir string, mounts func() string) {
	t.Helper()
	dir = t.TempDir()
	script := `set -e
mount --make-rprivate /
mount -t tmpfs root "$1"
mkdir -p "$1/proc" "$1/etc/keep" "$1/sub/mnt"
mount -t proc proc "$1/proc"
mount -t tmpfs other "$1/sub/mnt"
: > "$1/etc/resolv.conf"
mount --bind /dev/null "$1/etc/resolv.conf"
ln -s /proc/self/environ "$1/environ"
ln -s /proc/1/root "$1/magic"
echo ready
read x`
	cmd := exec.Command("sh", "-c", script, "sh", dir)
	// No Pdeathsig: it speaks of the thread that forked, and actors end threads.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("set-up: %q %v %s", line, err, stderr.String())
	}
	proc := "/proc/" + strconv.Itoa(cmd.Process.Pid)
	f, err := os.Open(filepath.Join(proc, "root", dir))
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	mounts = func() string {
		b, err := os.ReadFile(proc + "/mountinfo")
		must(t, err)
		var below []string
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, dir) {
				below = append(below, line)
			}
		}
		return strings.Join(below, "")
	}
	return New(f, Options{}), dir, mounts
}

// Other mounts are neither entered nor, by removing or replacing their mount
// point from another mount namespace, taken away.
func TestMountsAreLeftAlone(t *testing.T) {
	r, _, mounts := mountedRoot(t)
	ctx := context.Background()
	before := mounts()
	if strings.Count(before, "\n") != 4 {
		t.Fatalf("set-up:\n%s", before)
	}
	write := func(p string) error {
		_, err := r.Write(ctx, p, strings.NewReader("x"), WriteOptions{})
		return err
	}
	_, statErr := r.Stat(ctx, "/proc", false)
	_, listErr := r.List(ctx, "/proc", "", 0)
	_, openErr := r.Open(ctx, "/environ")
	_, magicErr := r.Open(ctx, "/magic/etc/passwd")
	_, dotErr := r.Stat(ctx, "/proc/self/root", true)
	_, tarErr := r.TarOut(ctx, "/proc", discard{})
	_, tarInErr := r.TarIn(ctx, "/", tarOf(t, entry{name: "etc/resolv.conf", content: "x"}), TarInOptions{})
	_, tarInErr2 := r.TarIn(ctx, "/", tarOf(t, entry{name: "sub/mnt/x", content: "x"}), TarInOptions{})
	for name, err := range map[string]error{
		"stat": statErr, "list": listErr, "open": openErr, "magic": magicErr, "dot": dotErr, "tar": tarErr,
		"tar in over": tarInErr, "tar in below": tarInErr2,
		"write below":  write("/proc/x"),
		"write over":   write("/etc/resolv.conf"),
		"remove dir":   r.Remove(ctx, "/proc", false),
		"remove all":   r.Remove(ctx, "/proc", true),
		"remove file":  r.Remove(ctx, "/etc/resolv.conf", false),
		"rename":       r.Rename(ctx, "/proc", "/other", false),
		"rename over":  r.Rename(ctx, "/etc/keep", "/proc", true),
		"remove above": r.Remove(ctx, "/sub", true),
		"rename file":  r.Rename(ctx, "/etc/resolv.conf", "/moved", true),
	} {
		if !errors.Is(err, ErrOutside) {
			t.Errorf("%s: %v, want %s", name, err, ErrOutside)
		}
	}
	if after := mounts(); after != before {
		t.Errorf("mounts before:\n%s\nafter:\n%s", before, after)
	}

	p, err := r.List(ctx, "/", "", 0)
	must(t, err)
	for _, i := range p.Items {
		if i.Mount != (i.Name == "proc") {
			t.Errorf("%s: mount %v", i.Name, i.Mount)
		}
	}
	stats, err := r.TarOut(ctx, "/", discard{})
	must(t, err)
	if stats.Skipped != 3 { // proc, mnt, resolv.conf
		t.Errorf("skipped %d", stats.Skipped)
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
