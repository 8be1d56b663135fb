package criu_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cairn/sandbox/stem"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ids is the size of a sandbox's range of user and group ids.
const ids = 1 << 16

// program is the directory that sandboxes see at /.cairn.
var program string

var lastBox atomic.Int64

// box is a sandbox: a container of runc's, with the stem below PID 1, on an overlay
// whose lower layer is the host's root.
type box struct {
	*stem.Client
	name string
	dir  string
	base int // host id of root inside
	pid  int // of PID 1 on the host
	seq  atomic.Int64
}

func newBox(t testing.TB) *box {
	t.Helper()
	dir, err := os.MkdirTemp("", "cb")
	check(t, err)
	check(t, os.Chmod(dir, 0o755))
	n := lastBox.Add(1)
	b := &box{dir: dir, name: fmt.Sprintf("cb-%d-%d", os.Getpid(), n), base: 1<<28 + int(n)*ids}
	for _, d := range []string{"io", "upper", "work", "root"} {
		check(t, os.Mkdir(dir+"/"+d, 0o755))
		check(t, os.Chown(dir+"/"+d, b.base, b.base))
	}
	t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
	check(t, unix.Mount("overlay", dir+"/root", "overlay", 0, "lowerdir=/,upperdir="+dir+"/upper,workdir="+dir+"/work"))
	t.Cleanup(func() { check(t, unix.Unmount(dir+"/root", unix.MNT_DETACH)) })
	for _, d := range []string{"/.cairn", "/run/cairn"} {
		check(t, os.MkdirAll(dir+"/root"+d, 0o755))
	}
	check(t, os.WriteFile(dir+"/config.json", b.spec(t), 0o644))
	b.runc(t, "run", "-d", "--bundle", dir, "--pid-file", dir+"/pid", b.name)
	t.Cleanup(func() { b.runc(t, "delete", "-f", b.name) })
	text, err := os.ReadFile(dir + "/pid")
	check(t, err)
	b.pid, err = strconv.Atoi(string(text))
	check(t, err)
	w, err := stem.NewWatcher()
	check(t, err)
	t.Cleanup(func() { check(t, w.Close()) })
	b.Client, err = stem.Open(dir+"/io", stem.Options{Watcher: w})
	check(t, err)
	t.Cleanup(func() { check(t, b.Close()) })
	_, err = b.Ping(t.Context())
	check(t, err)
	return b
}

func (b *box) runc(t testing.TB, args ...string) {
	t.Helper()
	wd, err := os.Getwd()
	check(t, err)
	cmd := exec.Command(filepath.Join(wd, "../bin/runc"), append([]string{"--root", filepath.Join(os.TempDir(), "cb-runc")}, args...)...)
	// A container keeps what it is given open: no pipe that somebody waits for.
	log, err := os.Create(b.dir + "/log")
	check(t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(b.dir + "/log")
		t.Fatalf("runc %v: %v: %s", args, err, text)
	}
}

// spec is what sandboxes are made from.
func (b *box) spec(t testing.TB) []byte {
	caps := []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
		"CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_SETFCAP",
	}
	maps := []specs.LinuxIDMapping{{ContainerID: 0, HostID: uint32(b.base), Size: ids}}
	oom := 500
	s := &specs.Spec{
		Version:  specs.Version,
		Root:     &specs.Root{Path: b.dir + "/root"},
		Hostname: "cairn",
		Process: &specs.Process{
			Args:            []string{"/.cairn/cairn-init"},
			Env:             []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "GOMAXPROCS=1", "GOGC=20"},
			Cwd:             "/",
			NoNewPrivileges: true,
			OOMScoreAdj:     &oom,
			Capabilities:    &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
			Rlimits:         []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 4096, Hard: 4096}, {Type: "RLIMIT_CORE"}},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=1m"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777"}},
			{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			{Destination: "/run/cairn", Type: "bind", Source: b.dir + "/io", Options: []string{"bind", "private", "rw", "nosuid", "nodev", "noexec"}},
			{Destination: "/.cairn", Type: "bind", Source: program, Options: []string{"bind", "private", "ro", "nosuid", "nodev"}},
		},
		Linux: &specs.Linux{
			UIDMappings: maps,
			GIDMappings: maps,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.UserNamespace},
				{Type: specs.PIDNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.CgroupNamespace},
			},
			CgroupsPath:       "/cairn-test/" + b.name,
			Resources:         &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}},
			RootfsPropagation: "private",
			MaskedPaths:       []string{"/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"},
			ReadonlyPaths:     []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	if os.Getenv("NOSECCOMP") == "" {
		s.Linux.Seccomp = seccomp.DefaultProfile(s)
	}
	text, err := json.Marshal(s)
	check(t, err)
	return text
}

// start starts a command through the stem and returns its id.
func (b *box) start(t testing.TB, argv ...string) string {
	t.Helper()
	id := "exec_" + strconv.FormatInt(b.seq.Add(1), 10)
	_, err := b.Start(t.Context(), stem.Request{ID: id, Argv: argv})
	check(t, err)
	return id
}

// output is what a process has written so far.
func (b *box) output(t testing.TB, id string) string {
	t.Helper()
	var all []byte
	for _, s := range []stem.Stream{stem.Stdout, stem.Stderr} {
		text, _, _, err := b.Output(id, s, 0, 1<<20)
		check(t, err)
		all = append(all, text...)
	}
	return string(all)
}

// sh runs a script to its end.
func (b *box) sh(t testing.TB, script string) string {
	t.Helper()
	id := b.start(t, "/bin/sh", "-c", script)
	_, err := b.Wait(t.Context(), id)
	check(t, err)
	return b.output(t, id)
}

// says waits until a process has written something.
func (b *box) says(t testing.TB, id, what string) {
	t.Helper()
	until(t, fmt.Sprintf("%s to say %q", id, what), func() error {
		if out := b.output(t, id); !strings.Contains(out, what) {
			return errors.New("it said " + out)
		}
		return nil
	})
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until polls for what no event announces.
func until(t testing.TB, what string, cond func() error) {
	t.Helper()
	deadline, tick := time.After(2*time.Minute), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for {
		err := cond()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("timed out waiting for %s: %v", what, err)
		case <-tick.C:
		}
	}
}

var (
	_ = bytes.MinRead
	_ = context.Background
)
