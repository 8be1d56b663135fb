package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	goruntime "runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"cairn/api"
	"cairn/api/types"
	"cairn/sandbox"
)

// closeTime is how long an orderly shutdown may take; what is not durable by
// then is made durable by the next daemon.
const closeTime = 30 * time.Second

// Serve opens the state directory, serves the API until ctx is done, and closes
// everything in order. Sandboxes run on.
func Serve(ctx context.Context, o Options) (err error) {
	started := time.Now()
	// The heap is small, a few MB, and requests are short: collecting at each
	// doubling costs them more time than this costs memory.
	const gcPercent = 400
	debug.SetGCPercent(gcPercent)
	d, err := Open(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
		defer cancel()
		err = errors.Join(err, d.Close(closing))
		d.log.Info("stopped")
	}()
	handler, err := d.handler(started)
	if err != nil {
		return err
	}
	return d.listen(ctx, handler)
}

// listen serves the handler on the configured sockets until ctx is done.
func (d *Daemon) listen(ctx context.Context, handler http.Handler) error {
	listeners, err := d.listeners(ctx)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, l := range listeners {
		server := api.HTTPServer(handler, d.log)
		server.BaseContext = func(net.Listener) context.Context { return ctx }
		group.Go(func() error {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
		group.Go(func() error {
			<-ctx.Done()
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime/3)
			defer cancel()
			return server.Shutdown(closing)
		})
		d.log.Info("listening", "address", l.Addr().String())
	}
	if _, err := systemd.SdNotify(false, systemd.SdNotifyReady); err != nil {
		d.log.Warn("cannot tell systemd that the daemon is ready", "err", err)
	}
	err = group.Wait()
	if _, stopping := systemd.SdNotify(false, systemd.SdNotifyStopping); stopping != nil {
		d.log.Warn("cannot tell systemd that the daemon stops", "err", stopping)
	}
	return err
}

func (d *Daemon) listeners(ctx context.Context) (list []net.Listener, err error) {
	defer func() {
		if err != nil {
			for _, l := range list {
				err = errors.Join(err, l.Close())
			}
		}
	}()
	path := d.cfg.API.Socket
	// The lock of the state directory is held: a socket that is there is a former daemon's.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	// Born closed, then opened to the group: there is no moment at which others could connect.
	var lc net.ListenConfig
	old := unix.Umask(0o177)
	unixListener, err := lc.Listen(ctx, "unix", path)
	unix.Umask(old)
	if err != nil {
		return nil, err
	}
	list = append(list, unixListener)
	if g := d.cfg.API.Group; g != "" {
		gid, err := groupID(g)
		if err != nil {
			return list, fmt.Errorf("api.group: %w", err)
		}
		if err := errors.Join(os.Chown(path, -1, gid), os.Chmod(path, 0o660)); err != nil {
			return list, err
		}
	}
	if a := d.cfg.API.Listen; a != "" {
		l, err := lc.Listen(ctx, "tcp", a)
		if err != nil {
			return list, err
		}
		list = append(list, l)
	}
	return list, nil
}

func groupID(name string) (int, error) {
	if id, err := strconv.Atoi(name); err == nil {
		return id, nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(g.Gid)
}

// tokens reads the bearer token of the TCP listener.
func (d *Daemon) tokens() ([]api.Token, error) {
	file := d.cfg.API.TokenFile
	if file == "" {
		return nil, nil
	}
	st, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	const others = 0o077
	if st.Mode().Perm()&others != 0 {
		return nil, fmt.Errorf("%s can be read by others: give it mode 0600", file)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	const least = 16
	secret := strings.TrimSpace(string(raw))
	if len(secret) < least {
		return nil, fmt.Errorf("%s: a token has at least %d characters", file, least)
	}
	return []api.Token{{Name: "token", Secret: secret}}, nil
}

func (d *Daemon) handler(started time.Time) (http.Handler, error) {
	tokens, err := d.tokens()
	if err != nil {
		return nil, err
	}
	spool := filepath.Join(d.cfg.StateDir, "spool")
	if err := errors.Join(os.RemoveAll(spool), os.MkdirAll(spool, 0o700)); err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), d.collector())
	return api.NewServer(api.Options{
		Service: d.Service, Images: d.images, Idempotency: idempotency{d.store}, Tokens: tokens, Logger: d.log,
		Info: func(ctx context.Context) (types.Info, error) { return d.info(ctx, started) }, Ready: d.ready,
		Registerer: registry, Metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), SpoolDir: spool,
		Limits: api.Limits{Requests: d.cfg.API.MaxInFlight, UploadBytes: d.cfg.Limits.UploadBytes},
	})
}

// ready says whether what every operation needs answers.
func (d *Daemon) ready(ctx context.Context) error {
	return d.store.View(ctx, func(tx sandbox.Tx) error { _, err := tx.LastEvent(); return err })
}

func (d *Daemon) info(ctx context.Context, started time.Time) (types.Info, error) {
	f := d.pool.Features()
	yes := func(ok bool) string {
		if ok {
			return "yes"
		}
		return "no"
	}
	processes, err := d.criu.Probe(ctx)
	if err != nil {
		return types.Info{}, err
	}
	limit := "kernel (project quota)"
	if !f.ProjectQuota {
		limit = "accounting (pauses the sandbox)"
	}
	info := types.Info{
		Version: Version(), GoVersion: goruntime.Version(), Kernel: kernelRelease(), StartedAt: started.UTC(),
		Features: map[string]string{
			"file_system": f.FileSystem, "reflink": yes(f.Reflink), "disk_limit": limit,
			"detached_idmap": yes(f.DetachedIDMap),
			"processes":      yes(processes.Supported), "criu": processes.Version, "incremental_dumps": yes(processes.Incremental),
		},
		Limits: map[string]int64{
			"forks": int64(d.cfg.Limits.Forks), "sandboxes": int64(d.cfg.Limits.Sandboxes), "disk_bytes": d.cfg.Limits.DiskBytes,
			"output_bytes": d.cfg.Limits.OutputBytes, "stdin_bytes": d.cfg.Limits.StdinBytes, "upload_bytes": d.cfg.Limits.UploadBytes,
		},
	}
	if len(processes.Reasons) > 0 {
		info.Features["processes_lack"] = strings.Join(processes.Reasons, "; ")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(d.cfg.Pool.Dir, &st); err != nil {
		return types.Info{}, err
	}
	info.Pool.FileSystem, info.Pool.Path = f.FileSystem, d.cfg.Pool.Dir
	info.Pool.FreeBytes, info.Pool.SizeBytes = int64(st.Bavail)*st.Bsize, int64(st.Blocks)*st.Bsize
	info.Pool.Warm = map[string]int{"none": d.cfg.Warm.None, "egress": d.cfg.Warm.Egress}
	return info, nil
}

// kernelRelease is what uname -r prints.
func kernelRelease() string {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(uts.Release[:])
}
