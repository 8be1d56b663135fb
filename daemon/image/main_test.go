package image

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"go.uber.org/goleak"

	"cairn/daemon/store"
	"cairn/overlay"
	"cairn/sandbox"
)

// containerdSocket is that of the containerd which all tests here share.
var containerdSocket string

func TestMain(m *testing.M) {
	code, err := withContainerd(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// withContainerd runs fn beside a containerd in a directory of its own.
func withContainerd(fn func() int) (code int, err error) {
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "cairn-image-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	containerdSocket = filepath.Join(dir, "c.sock")
	config := fmt.Sprintf("version = 3\nroot = %q\nstate = %q\n[grpc]\naddress = %q\n[ttrpc]\naddress = %q\n[debug]\nlevel = \"error\"\n",
		filepath.Join(dir, "root"), filepath.Join(dir, "state"), containerdSocket, containerdSocket+".ttrpc")
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(config), 0o600); err != nil {
		return 0, err
	}
	stop, err := start(filepath.Join(bin, "containerd"), "--config", filepath.Join(dir, "config.toml"))
	if err != nil {
		return 0, fmt.Errorf("these tests need containerd in bin/ (make build): %w", err)
	}
	defer stop()
	if err := eventually(30*time.Second, func() error {
		c, err := net.Dial("unix", containerdSocket)
		if err == nil {
			c.Close()
		}
		return err
	}); err != nil {
		return 0, err
	}
	return fn(), nil
}

// start runs a program until stop is called or this process dies.
func start(name string, args ...string) (stop func(), err error) {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
		_ = cmd.Wait()
	}, nil
}

// eventually tries fn until it succeeds or the time is over.
func eventually(limit time.Duration, fn func() error) error {
	deadline := time.After(limit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := fn()
		if err == nil {
			return nil
		}
		select {
		case <-deadline:
			return err
		case <-tick.C:
		}
	}
}

// rig is a manager on a pool, a store and a containerd namespace of its own.
type rig struct {
	*Manager
	store     *store.Store
	overlay   *overlay.Pool
	pool      *countingPool
	client    *client.Client
	namespace string
	pins      pins
}

func newRig(t testing.TB, change func(*Options)) *rig {
	t.Helper()
	dir := t.TempDir()
	s, err := store.Open(context.Background(), filepath.Join(dir, "cairn.db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	p, err := overlay.Open(filepath.Join(dir, "pool"), overlay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	c, err := client.New(containerdSocket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	var ids atomic.Int64
	r := &rig{
		store: s, overlay: p, pool: &countingPool{Pool: FromOverlay(p)}, client: c,
		namespace: fmt.Sprintf("test-%d", time.Now().UnixNano()), pins: pins{n: map[string]int{}},
	}
	o := Options{
		Store: s, Pool: r.pool, Namespace: r.namespace, Pin: r.pins.pin,
		Containerd: func(context.Context) (Containerd, error) { return c, nil },
		NewID:      func(prefix string) string { return fmt.Sprintf("%s_%026d", prefix, ids.Add(1)) },
	}
	if change != nil {
		change(&o)
	}
	if r.Manager, err = New(o); err != nil {
		t.Fatal(err)
	}
	// Whatever a test did, nothing may be left: neither blobs nor pins.
	t.Cleanup(func() {
		if err := eventually(10*time.Second, r.noBlobs); err != nil {
			t.Error(err)
		}
		if n := r.pins.count(); n != 0 {
			t.Errorf("%d layers are still pinned", n)
		}
	})
	return r
}

func (r *rig) noBlobs() error {
	ctx := namespaces.WithNamespace(context.Background(), r.namespace)
	n := 0
	if err := r.client.ContentStore().Walk(ctx, func(content.Info) error { n++; return nil }); err != nil {
		return err
	}
	l, err := r.client.LeasesService().List(ctx)
	if err != nil {
		return err
	}
	if n+len(l) > 0 {
		return fmt.Errorf("%d blobs and %d leases are left in containerd", n, len(l))
	}
	return nil
}

// pins counts like the sandbox service does.
type pins struct {
	mu sync.Mutex
	n  map[string]int
}

func (p *pins) pin(ids ...string) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		p.n[id]++
	}
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, id := range ids {
			if p.n[id]--; p.n[id] == 0 {
				delete(p.n, id)
			}
		}
	})
}

func (p *pins) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.n)
}

// countingPool counts the layers that were unpacked.
type countingPool struct {
	Pool
	applied atomic.Int64
}

func (c *countingPool) Seal(ctx context.Context, id string) (string, int64, int64, error) {
	c.applied.Add(1)
	return c.Pool.Seal(ctx, id)
}

// registry runs Debian's docker-registry on loopback, with basic authentication
// (bob, secret) when asked for, and gives its address.
func registry(t testing.TB, auth bool) string {
	t.Helper()
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	config := fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: %q}}\nhttp: {addr: %q}\n", dir, addr)
	if auth {
		file := filepath.Join(dir, "htpasswd")
		// bcrypt of "secret"
		if err := os.WriteFile(file, []byte("bob:$2a$05$gnSJXcCmqCnjOMF6f3U.xuw7VxciC/Mnan/EFksH5E5byM5uwQ7wC\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		config += fmt.Sprintf("auth: {htpasswd: {realm: test, path: %q}}\n", file)
	}
	file := filepath.Join(dir, "config.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	stop, err := start("docker-registry", "serve", file)
	if err != nil {
		t.Fatalf("this test needs Debian's docker-registry (make setup): %v", err)
	}
	t.Cleanup(stop)
	if err := eventually(20*time.Second, func() error {
		r, err := httpClient().Get("http://" + addr + "/v2/")
		if err == nil {
			r.Body.Close()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return addr
}

func httpClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
}

func wantCode(t testing.TB, err error, want sandbox.Code) {
	t.Helper()
	if got := sandbox.CodeOf(err); got != want {
		t.Fatalf("got code %q (%v), want %q", got, err, want)
	}
}
