package runtime

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cairn/daemon/network"
	"cairn/sandbox"
)

// What a process sees and may do, as root inside a blank container.
func TestIsolation(t *testing.T) {
	h := newHost(t)
	r := h.open(t, nil)
	c := acquire(t, r)
	n := 0
	ask := func(script string) string {
		n++
		out, _ := sh(t, c, fmt.Sprintf("i%d", n), script)
		return strings.TrimSpace(out)
	}
	status := ask("cat /proc/self/status")
	field := func(name string) string {
		for line := range strings.Lines(status) {
			if v, ok := strings.CutPrefix(line, name+":"); ok {
				return strings.TrimSpace(v)
			}
		}
		return ""
	}
	if got, want := strings.Fields(ask("cat /proc/self/uid_map")), []string{"0", fmt.Sprint(c.IDBase()), "65536"}; strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("uid map %v, want %v", got, want)
	}
	if got := field("NoNewPrivs"); got != "1" {
		t.Errorf("no new privileges: %q", got)
	}
	if got := field("Seccomp"); got != "2" {
		t.Errorf("seccomp mode: %q", got)
	}
	// Bits of capabilities(7), in the order of its numbers.
	const want = 1<<0 | 1<<1 | 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<8 | 1<<10 | 1<<18 | 1<<31
	for _, set := range []string{"CapBnd", "CapPrm", "CapEff"} {
		if got := field(set); got != fmt.Sprintf("%016x", uint64(want)) {
			t.Errorf("%s is %s, want %016x", set, got, uint64(want))
		}
	}
	if got := field("CapInh") + field("CapAmb"); strings.Trim(got, "0") != "" {
		t.Errorf("inheritable or ambient capabilities: %s", got)
	}
	for _, ns := range []string{"user", "pid", "mnt", "net", "ipc", "uts", "cgroup"} {
		ours, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		if theirs := ask("readlink /proc/self/ns/" + ns); theirs == ours || theirs == "" {
			t.Errorf("%s namespace: %q, ours %q", ns, theirs, ours)
		}
	}
	for _, script := range []string{
		"mount -t tmpfs tmpfs /tmp", "mount -o remount,rw /.cairn", "umount /proc", "touch /.cairn/x",
		"echo 1 > /proc/sys/kernel/printk", "echo b > /proc/sysrq-trigger", "echo 0 > /proc/sys/net/ipv4/ip_forward",
		"mknod /tmp/sda b 8 0", "mknod /run/cairn/null c 1 3", "unshare -U true", "unshare -n true", "nsenter -t 1 -m true",
		"chown 65536 /tmp", "hostname x", "date -s 2001-01-01; date | grep 2001", "ip link set lo down", "ping -c1 -I lo 127.0.0.1 -p ff -s 1 -w 1 && ip addr add 10.0.0.1/8 dev lo",
		"cat /proc/kcore | head -c 1 | grep -q .", "ls /sys/firmware | grep -q .", "ls /sys/fs/cgroup | grep -q .",
		"cp /bin/busybox /run/cairn/b && /run/cairn/b true", "dmesg", "chroot /proc/1/root/.. ls /etc/debian_version",
	} {
		if out := ask("if ( " + script + " ) >/dev/null 2>&1; then echo allowed; fi"); out != "" {
			t.Errorf("%s: %s", script, out)
		}
	}
	for _, script := range []string{"echo x > /dev/null", "head -c1 /dev/urandom >/dev/null", "echo x > /dev/shm/x", "test -w /run/cairn", "test -c /dev/ptmx", "chown 1000 /run/cairn/generation || touch /run/cairn/z && chown 1000 /run/cairn/z"} {
		if out := ask("( " + script + " ) >/dev/null 2>&1 && echo allowed"); out != "allowed" {
			t.Errorf("denied: %s", script)
		}
	}
	if got := ask("cat /proc/self/cgroup"); strings.Contains(got, c.Name()) {
		t.Errorf("the host's cgroups are visible: %s", got)
	}
	// Of the host's file system: the skeleton, two binds, device nodes. None of
	// its paths but the sources of these.
	for _, line := range strings.Split(ask("cat /proc/self/mountinfo"), "\n") {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		switch target := f[4]; {
		case target == "/", target == ioDir, target == initDir, target == "/proc", target == "/sys",
			strings.HasPrefix(target, "/proc/"), strings.HasPrefix(target, "/sys/"), target == "/dev", strings.HasPrefix(target, "/dev/"):
		default:
			t.Errorf("unexpected mount: %s", line)
		}
	}
	if got := ask("ls /sys/class/net"); got != "lo" {
		t.Errorf("interfaces: %s", got)
	}
	if got := ask("cat /proc/net/dev | grep -c :"); got != "1" {
		t.Errorf("interfaces: %s", got)
	}
	if got := ask("cat /proc/self/limits | grep 'open files'"); !strings.Contains(got, fmt.Sprint(min(wantedFiles, 20000))) && !strings.Contains(got, fmt.Sprint(wantedFiles)) {
		t.Errorf("open files: %s", got)
	}
	if fi, err := os.Stat(c.IODir()); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("io directory: %v, %v", fi.Mode(), err)
	}
}

// io_uring is absent, as on an old kernel; making a namespace is forbidden.
func TestSystemCalls(t *testing.T) {
	h := newHost(t)
	r := h.open(t, nil)
	c := acquire(t, r)
	src := filepath.Join(h.dir, "probe.go")
	const program = `package main
import ("fmt"; "syscall"; "unsafe")
func main() {
	var p [256]byte
	for _, c := range []struct{ n string; nr, a, b, c uintptr }{
		{"io_uring_setup", 425, 1, uintptr(unsafe.Pointer(&p)), 0}, {"io_uring_enter", 426, 0, 0, 0}, {"io_uring_register", 427, 0, 0, 0},
		{"clone newuser", 56, 0x10000000, 0, 0}, {"clone newns", 56, 0x20000, 0, 0}, {"clone3", 435, uintptr(unsafe.Pointer(&p)), 88, 0}, {"unshare newuser", 272, 0x10000000, 0, 0},
		{"keyctl", 250, 0, 0, 0}, {"bpf", 321, 0, 0, 0}, {"setns", 308, 0, 0, 0}, {"mount", 165, 0, 0, 0}, {"kexec_load", 246, 0, 0, 0}, {"init_module", 175, 0, 0, 0}, {"raw socket", 41, 2, 3, 1}, {"ping socket", 41, 2, 2, 1},
		{"getpid", 39, 0, 0, 0},
	} {
		_, _, e := syscall.RawSyscall(c.nr, c.a, c.b, c.c)
		fmt.Println(c.n, int(e))
	}
}`
	if err := os.WriteFile(src, []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(h.dir, "skel/bin/probe"), src)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod", "GOARCH=amd64")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, code := sh(t, c, "probe", "/bin/probe")
	if code != 0 {
		t.Fatal(out)
	}
	const nosys, perm = "38", "1"
	want := map[string]string{
		"io_uring_setup": nosys, "io_uring_enter": nosys, "io_uring_register": nosys, "clone3": nosys,
		"clone newuser": perm, "clone newns": perm, "unshare newuser": perm, "keyctl": perm, "bpf": perm, "setns": perm,
		"mount": perm, "kexec_load": perm, "init_module": perm, "raw socket": perm, "getpid": "0", "ping socket": "0",
	}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		name, errno := strings.Join(f[:len(f)-1], " "), f[len(f)-1]
		if errno != want[name] {
			t.Errorf("%s: errno %s, want %s", name, errno, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("not tried: %v", want)
	}
}

// A container with egress has an interface as soon as it is acquired, and its
// address is free when it is gone.
func TestEgress(t *testing.T) {
	h := newHost(t)
	e, err := network.New(network.Options{Dir: filepath.Join(h.dir, "net"), Bridge: "cairn-rt"})
	if err != nil {
		t.Fatal(err)
	}
	r := h.open(t, func(o *Options) { o.Egress, o.Warm.Egress = e, 1 })
	eventually(t, func() error {
		if r.Warm(sandbox.NetworkEgress) != 1 {
			return fmt.Errorf("not warm")
		}
		return nil
	})
	c, warm, err := r.Acquire(t.Context(), sandbox.NetworkEgress)
	if err != nil || !warm {
		t.Fatal(warm, err)
	}
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out, _ := sh(t, c, "ip", "ip -4 addr show eth0; ip route; ip -6 addr")
	if !strings.Contains(out, "inet 10.88.") || !strings.Contains(out, "default via 10.88.0.1") || strings.Contains(out, "inet6 fe80") {
		t.Errorf("inside: %s", out)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if out, _ := sh(t, c, "nc", "nc -w 1 10.88.0.1 "+port+" </dev/null && echo reached"); strings.Contains(out, "reached") {
		t.Error("the host is reached")
	}
	if err := r.Destroy(t.Context(), c.Name()); err != nil {
		t.Fatal(err)
	}
	ids, err := e.Attached()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if id == c.Name() {
			t.Error("its address is still taken")
		}
	}
	// A daemon without the network's pool gives everything back.
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	later := h.open(t, func(o *Options) { o.Egress = e })
	eventually(t, func() error {
		if ids, err := e.Attached(); later.Count() != 0 || len(ids) != 0 {
			return fmt.Errorf("%d containers, addresses %v, %w", later.Count(), ids, err)
		}
		return nil
	})
	if err := e.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}
