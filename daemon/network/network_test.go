package network

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain runs the tests in a network namespace of their own, which plays the
// host: nothing of the real one is touched.
func TestMain(m *testing.M) {
	const inside = "CAIRN_TEST_NETNS"
	if os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "tests in a network namespace (they need root):", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// space is a network namespace, held by a process that does nothing.
type space struct {
	t   *testing.T
	pid int
}

func newSpace(t *testing.T) space {
	t.Helper()
	cmd := exec.Command("sleep", "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	s := space{t, cmd.Process.Pid}
	s.ip("link set lo up")
	return s
}

func (s space) path() string { return fmt.Sprintf("/proc/%d/ns/net", s.pid) }

func (s space) ip(args string) {
	s.t.Helper()
	ip(s.t, "nsenter -t "+strconv.Itoa(s.pid)+" -n ip "+args)
}

func ip(t *testing.T, command string) {
	t.Helper()
	f := strings.Fields(command)
	if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// in runs fn on a thread in the namespace; the thread is not used again.
func (s space) in(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		fd, err := unix.Open(s.path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
		}
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

// serve answers every connection to addr with a byte.
func (s space) serve(addr string) {
	s.t.Helper()
	var l net.Listener
	err := s.in(func() (err error) { l, err = net.Listen("tcp4", addr); return err })
	if err != nil {
		s.t.Fatal(err)
	}
	answer(s.t, l)
}

func answer(t *testing.T, l net.Listener) {
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte{'!'})
			c.Close()
		}
	}()
}

// reach dials addr and wants a byte.
func reach(addr string) error {
	c, err := net.DialTimeout("tcp", addr, 700*time.Millisecond)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	return err
}

// address is the IPv4 address of eth0.
func (s space) address() string {
	s.t.Helper()
	out, err := exec.Command("nsenter", "-t", strconv.Itoa(s.pid), "-n", "ip", "-4", "-o", "addr", "show", "dev", "eth0").Output()
	if err != nil {
		s.t.Fatal(err)
	}
	p, err := netip.ParsePrefix(strings.Fields(string(out))[3])
	if err != nil {
		s.t.Fatal(err)
	}
	return p.Addr().String()
}

func newEgress(t *testing.T, o Options) *Egress {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	if o.Bridge == "" {
		o.Bridge = "cairn-test"
	}
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Sweep(context.Background(), func(string) bool { return false }); err != nil {
			t.Error(err)
		}
		if err := e.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return e
}

func TestReach(t *testing.T) {
	ctx := t.Context()
	ip(t, "ip link set lo up")
	internet := newSpace(t)
	ip(t, fmt.Sprintf("ip link add up0 type veth peer name up1 netns %d", internet.pid))
	t.Cleanup(func() {
		_ = exec.Command("ip", "link", "del", "up0").Run()
		_ = exec.Command("ip", "addr", "del", "192.0.2.1/32", "dev", "lo").Run()
	})
	for _, a := range []string{"addr add 203.0.113.1/24 dev up0", "link set up0 up", "addr add 192.0.2.1/32 dev lo"} {
		ip(t, "ip "+a)
	}
	for _, a := range []string{"addr add 203.0.113.2/24 dev up1", "link set up1 up", "addr add 198.51.100.7/32 dev lo", "addr add 169.254.169.254/32 dev lo", "addr add 10.1.2.3/32 dev lo", "addr add 192.168.5.5/32 dev lo"} {
		internet.ip(a)
	}
	ip(t, "ip route add default via 203.0.113.2")
	internet.serve("0.0.0.0:80")
	l, err := net.Listen("tcp4", "0.0.0.0:2375") // a service of the host
	if err != nil {
		t.Fatal(err)
	}
	answer(t, l)

	e := newEgress(t, Options{Denied: append(LinkLocal(), netip.MustParsePrefix("192.168.0.0/16"))})
	a, b := newSpace(t), newSpace(t)
	for id, s := range map[string]space{"one": a, "two": b} {
		if err := e.Attach(ctx, id, s.path()); err != nil {
			t.Fatal(err)
		}
	}
	b.serve("0.0.0.0:8080")
	bAddr := net.JoinHostPort(b.address(), "8080")
	gateway := netip.MustParsePrefix(e.Subnet()).Addr().Next().String()

	t.Run("out", func(t *testing.T) {
		for _, addr := range []string{"203.0.113.2:80", "198.51.100.7:80", "10.1.2.3:80"} {
			if err := a.in(func() error { return reach(addr) }); err != nil {
				t.Errorf("%s: %v", addr, err)
			}
		}
	})
	t.Run("host", func(t *testing.T) {
		if err := internet.in(func() error { return reach("203.0.113.1:2375") }); err != nil {
			t.Fatalf("the service does not even serve others: %v", err)
		}
		for _, addr := range []string{gateway, "203.0.113.1", "192.0.2.1"} {
			if err := a.in(func() error { return reach(addr + ":2375") }); err == nil {
				t.Errorf("a sandbox reaches the host at %s", addr)
			}
		}
	})
	t.Run("denied networks", func(t *testing.T) {
		for _, addr := range []string{"169.254.169.254:80", "192.168.5.5:80"} {
			if err := reach(addr); err != nil {
				t.Fatalf("%s is not even there: %v", addr, err)
			}
			if err := a.in(func() error { return reach(addr) }); err == nil {
				t.Errorf("a sandbox reaches %s", addr)
			}
		}
	})
	t.Run("another sandbox", func(t *testing.T) {
		if err := b.in(func() error { return reach(bAddr) }); err != nil {
			t.Fatalf("the other one does not even listen: %v", err)
		}
		if err := a.in(func() error { return reach(bAddr) }); err == nil {
			t.Error("a sandbox reaches another one on the bridge")
		}
		// By way of the host's routing, as root of the namespace could force it.
		a.ip("route add " + b.address() + "/32 via " + gateway)
		if err := a.in(func() error { return reach(bAddr) }); err == nil {
			t.Error("a sandbox reaches another one through the host")
		}
	})
	t.Run("from outside", func(t *testing.T) {
		internet.ip("route add " + e.Subnet() + " via 203.0.113.1")
		if err := internet.in(func() error { return reach(bAddr) }); err == nil {
			t.Error("somebody outside reaches a sandbox")
		}
	})
	t.Run("another address", func(t *testing.T) {
		c := newSpace(t)
		if err := e.Attach(ctx, "three", c.path()); err != nil {
			t.Fatal(err)
		}
		internet.ip("route add 10.99.0.0/24 via 203.0.113.1")
		ip(t, "ip route add 10.99.0.0/24 dev "+e.o.Bridge)
		c.ip("addr add 10.99.0.9/24 dev eth0")
		dial := func() error {
			return c.in(func() error {
				d := net.Dialer{Timeout: 700 * time.Millisecond, LocalAddr: &net.TCPAddr{IP: net.IPv4(10, 99, 0, 9)}}
				conn, err := d.Dial("tcp4", "203.0.113.2:80")
				if err == nil {
					conn.Close()
				}
				return err
			})
		}
		if dial() == nil {
			t.Error("a sandbox sends from an address that is not its own")
		}
	})
}

// The bridge itself keeps sandboxes apart, not only the rules.
func TestIsolatedPorts(t *testing.T) {
	e := newEgress(t, Options{})
	a, b := newSpace(t), newSpace(t)
	for id, s := range map[string]space{"one": a, "two": b} {
		if err := e.Attach(t.Context(), id, s.path()); err != nil {
			t.Fatal(err)
		}
	}
	b.serve("0.0.0.0:8080")
	addr := net.JoinHostPort(b.address(), "8080")
	if err := apply(t.Context(), "delete table inet cairn_cairn_test\n"); err != nil {
		t.Fatal(err)
	}
	if err := a.in(func() error { return reach(addr) }); err == nil {
		t.Fatal("a sandbox reaches another one")
	}
	// The opposite, to know that nothing else was in the way.
	out, err := exec.Command("bridge", "link", "show").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 1 && strings.Contains(line, "master "+e.o.Bridge) {
			port, _, _ := strings.Cut(strings.TrimSuffix(f[1], ":"), "@")
			ip(t, "bridge link set dev "+port+" isolated off")
		}
	}
	if err := a.in(func() error { return reach(addr) }); err != nil {
		t.Fatalf("not even unisolated ports reach each other: %v", err)
	}
}

func TestAddressesComeBack(t *testing.T) {
	ctx := t.Context()
	e := newEgress(t, Options{Subnet: netip.MustParsePrefix("10.77.0.0/29")}) // five addresses
	for i := range 8 {
		s := newSpace(t)
		id := fmt.Sprintf("id%d", i)
		if err := e.Attach(ctx, id, s.path()); err != nil {
			t.Fatal(err)
		}
		for range 2 { // a second time does no harm
			if err := e.Detach(ctx, id); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, id := range []string{"kept", "lost"} {
		if err := e.Attach(ctx, id, newSpace(t).path()); err != nil {
			t.Fatal(err)
		}
	}
	// A daemon that comes after one that was killed.
	later, err := New(e.o)
	if err != nil {
		t.Fatal(err)
	}
	if err := later.Sweep(ctx, func(id string) bool { return id == "kept" }); err != nil {
		t.Fatal(err)
	}
	ids, err := later.Attached()
	if err != nil || len(ids) != 1 || ids[0] != "kept" {
		t.Fatalf("attached after the sweep: %v, %v", ids, err)
	}
	if err := later.Remove(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := net.InterfaceByName(e.o.Bridge); err != nil {
		t.Fatal("the bridge went while it was in use")
	}
	if err := later.Detach(ctx, "kept"); err != nil {
		t.Fatal(err)
	}
	if err := later.Remove(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := net.InterfaceByName(e.o.Bridge); err == nil {
		t.Fatal("the bridge is still there")
	}
	if out, _ := exec.Command("nft", "list", "tables").Output(); strings.Contains(string(out), "cairn_test") {
		t.Fatalf("rules are left: %s", out)
	}
}

// More addresses than the subnet has is an error, and costs none of those in use.
func TestSubnetFull(t *testing.T) {
	e := newEgress(t, Options{Subnet: netip.MustParsePrefix("10.77.0.0/29")})
	for i := range 5 {
		if err := e.Attach(t.Context(), strconv.Itoa(i), newSpace(t).path()); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Attach(t.Context(), "6", newSpace(t).path()); err == nil {
		t.Fatal("a sixth address in a network of five")
	}
	if ids, err := e.Attached(); err != nil || len(ids) != 5 {
		t.Fatalf("attached: %v, %v", ids, err)
	}
}

func TestChooseSubnet(t *testing.T) {
	const table = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n" +
		"eth0\t00000000\t0102000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n" +
		"docker0\t0000580A\t00000000\t0001\t0\t0\t0\t00FCFFFF\t0\t0\t0\n" +
		"cairn0\t0004580A\t00000000\t0001\t0\t0\t0\t00FCFFFF\t0\t0\t0\n"
	used, err := parseRoutes(table, "cairn0")
	if err != nil || len(used) != 1 || used[0].String() != "10.88.0.0/22" {
		t.Fatalf("routes: %v, %v", used, err)
	}
	p, ok := freeSubnet(netip.MustParsePrefix(subnetPool), subnetBits, used)
	if !ok || p.String() != "10.88.4.0/22" {
		t.Fatalf("subnet: %v, %v", p, ok)
	}
	if _, ok := freeSubnet(netip.MustParsePrefix("10.88.0.0/23"), 24, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}); ok {
		t.Fatal("a subnet inside one that is in use")
	}
}

func TestResolvConf(t *testing.T) {
	e := newEgress(t, Options{DNS: []netip.Addr{netip.MustParseAddr("192.0.2.53")}})
	if got := e.ResolvConf(); got != "nameserver 192.0.2.53\n" {
		t.Errorf("configured: %q", got)
	}
	ns := nameservers("# c\nsearch x\nnameserver 127.0.0.53\nnameserver fe80::1\nnameserver 169.254.1.1\nnameserver 8.8.4.4\n")
	if len(ns) != 3 {
		t.Errorf("at most three count: %v", ns)
	}
	if got := e.reachable(append(ns, netip.MustParseAddr("8.8.4.4"))); len(got) != 1 || got[0].String() != "8.8.4.4" {
		t.Errorf("reachable: %v", got)
	}
}

func TestOptionsRefused(t *testing.T) {
	for name, o := range map[string]Options{
		"relative directory": {Dir: "x", Bridge: "b"},
		"long name":          {Dir: t.TempDir(), Bridge: "abcdefghijklmnop"},
		"hostile name":       {Dir: t.TempDir(), Bridge: `b" drop; #`},
		"no plugins":         {Dir: t.TempDir(), Bridge: "b", Plugins: []string{t.TempDir()}},
		"IPv6 subnet":        {Dir: t.TempDir(), Bridge: "b", Subnet: netip.MustParsePrefix("fd00::/64")},
		"tiny subnet":        {Dir: t.TempDir(), Bridge: "b", Subnet: netip.MustParsePrefix("10.0.0.0/31")},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
