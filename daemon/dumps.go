package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cairn/criu"
	"cairn/daemon/runtime"
	"cairn/overlay"
	"cairn/sandbox"
	"cairn/sandbox/stem"
)

// controlDir is where sandboxes see the directory that they share with the daemon.
const controlDir = "/run/cairn"

// carriedName is the file among the images with what of the control directory belongs to
// the processes.
const carriedName = "control.tar"

// dumps is a criu.CRIU as the domain wants it. Images are kept in layers of the pool.
type dumps struct {
	c    *criu.CRIU
	pool *overlay.Pool
	log  *slog.Logger
}

func (d dumps) Usable(ctx context.Context) error {
	f, err := d.c.Probe(ctx)
	if err != nil {
		return criuError(err)
	}
	if !f.Supported {
		return sandbox.Errorf(sandbox.CodeUnsupported, "this host cannot checkpoint processes: %s", strings.Join(f.Reasons, "; "))
	}
	return nil
}

// parts are the container and the client of its stem behind the domain's interface.
func parts(c sandbox.Container) (*runtime.Container, *stem.Client, error) {
	rc, ok := c.(*runtime.Container)
	if !ok {
		return nil, nil, fmt.Errorf("a container of type %T", c)
	}
	g, ok := rc.Guest().(*guest)
	if !ok {
		return nil, nil, fmt.Errorf("a guest of type %T", rc.Guest())
	}
	return rc, g.c, nil
}

func (d dumps) open(layer string) (*os.File, error) {
	f, err := os.OpenFile(d.pool.LayerPath(layer), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, sandbox.Wrap(err, sandbox.CodeCorrupt, "a layer is missing from the pool")
	}
	return f, err
}

// dump is a prepared one.
type dump struct {
	d      dumps
	p      *criu.Prepared
	target criu.Target
	images *os.File
	client *stem.Client
	ids    []string
	sizes  map[string]int64 // of outputs, when everything stood still
	laps   *laps
}

func (d dumps) PrepareDump(ctx context.Context, c sandbox.Container, layer string, ids []string) (_ sandbox.Dump, err error) {
	_, client, err := parts(c)
	if err != nil {
		return nil, err
	}
	m := &dump{d: d, target: criu.Target{PID: c.PID()}, client: client, ids: ids, laps: newLaps()}
	defer func() {
		if err != nil {
			m.Close()
		}
	}()
	if m.images, err = d.open(layer); err != nil {
		return nil, err
	}
	if m.p, err = d.c.PrepareDump(ctx, m.target, m.images); err != nil {
		return nil, criuError(err)
	}
	m.laps.lap("start")
	return m, nil
}

// quiet keeps requests to the stem waiting, once none is under way.
func quiet(ctx context.Context, client *stem.Client) (release func(), err error) {
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	release, err = client.Quiet(ctx)
	if err != nil {
		return nil, sandbox.Wrap(err, sandbox.CodeTimeout, "requests to the sandbox's processes did not end in time")
	}
	return release, nil
}

func (m *dump) Close() error {
	var err error
	if m.p != nil {
		err = m.p.Close()
	}
	if m.images != nil {
		err = errors.Join(err, m.images.Close())
	}
	return err
}

func (m *dump) Take(ctx context.Context, end bool, stopped func(context.Context) error, complete func(sandbox.Dumped) error) (sandbox.Dumped, error) {
	var sealed sandbox.Dumped
	begin := time.Now()
	o := criu.DumpOptions{
		LeaveRunning: !end,
		Stopped: func(ctx context.Context) error {
			m.laps.lap("stop")
			defer func() { m.laps.lap("files") }()
			m.sizes = m.client.OutputSizes(m.ids)
			if _, err := criu.SaveShm(ctx, m.target, m.images); err != nil {
				return criuError(err)
			}
			if err := criu.SaveIPC(ctx, m.target, m.images); err != nil {
				return criuError(err)
			}
			m.laps.lap("shared")
			return stopped(ctx)
		},
		Complete: func(_ context.Context, files []criu.File) (err error) {
			if sealed, err = m.seal(files); err != nil {
				return err
			}
			sealed.Freeze = time.Since(begin)
			return complete(sealed)
		},
	}
	release, err := quiet(ctx, m.client)
	if err != nil {
		return sealed, err
	}
	defer release()
	m.laps.lap("quiet")
	s, err := m.p.Dump(ctx, o)
	release()
	m.laps.lap("end")
	if err != nil {
		return sealed, criuError(err)
	}
	if !end {
		if sealed, err = m.seal(s.Files); err != nil {
			return sealed, err
		}
		sealed.Freeze = s.Freeze + s.Frozen
	}
	m.laps.lap("seal")
	m.laps.add("criu_freeze", s.Freeze)
	m.laps.add("criu_frozen", s.Frozen)
	m.laps.add("criu_memory", s.Memory)
	m.d.log.Debug("processes dumped", append(m.laps.attrs, "processes", s.Processes, "threads", s.Threads, "pages", s.Pages)...)
	return sealed, nil
}

// seal adds what belongs to the processes and is not in CRIU's images, and takes the digest.
func (m *dump) seal(files []criu.File) (sandbox.Dumped, error) {
	var carried []stem.CarriedFile
	for _, f := range files {
		if rel, ok := strings.CutPrefix(f.Path, controlDir+"/"); ok {
			// CRIU notes no size of what is only appended to.
			file := stem.CarriedFile{Path: rel, Size: -1}
			if size, known := m.sizes[rel]; known {
				file.Size = size
			} else if f.Size > 0 {
				file.Size = f.Size
			}
			carried = append(carried, file)
		}
	}
	fd, err := unix.Openat(int(m.images.Fd()), carriedName, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return sandbox.Dumped{}, fmt.Errorf("write %s: %w", carriedName, err)
	}
	f := os.NewFile(uintptr(fd), carriedName)
	if err := errors.Join(m.client.SaveFiles(f, carried), f.Close()); err != nil {
		return sandbox.Dumped{}, guestError(err)
	}
	digest, bytes, err := criu.Digest(m.images)
	return sandbox.Dumped{Digest: digest, Bytes: bytes}, criuError(err)
}

func (d dumps) Check(_ context.Context, layer, digest string) error {
	images, err := d.open(layer)
	if err != nil {
		return err
	}
	defer images.Close()
	got, _, err := criu.Digest(images)
	if err != nil {
		return criuError(err)
	}
	if got != digest {
		return sandbox.Errorf(sandbox.CodeCorrupt, "the images of the processes are not what was written at the checkpoint")
	}
	return nil
}

func (d dumps) Restore(ctx context.Context, c sandbox.Container, r sandbox.DumpedProcesses) (err error) {
	container, client, err := parts(c)
	if err != nil {
		return err
	}
	images, err := d.open(r.Layer)
	if err != nil {
		return err
	}
	defer images.Close()
	laps := newLaps()
	target := criu.Target{PID: c.PID()}
	started := d.startRestore(ctx, target, images)
	defer started.close()
	defer client.Suspend(r.IDs)()
	if err := client.HoldStem(); err != nil {
		return guestError(err)
	}
	release, err := quiet(ctx, client)
	if err != nil {
		return err
	}
	defer release()
	laps.lap("quiet")
	if err := container.EndTree(ctx); err != nil {
		return err
	}
	laps.lap("end")
	if err := r.Attach(ctx); err != nil {
		return err
	}
	laps.lap("attach")
	// Not before: CRIU loads its libraries from a mount that is moved by attaching.
	p, err := started.wait()
	if err == nil {
		err = p.Enter()
	}
	if err != nil {
		return criuError(err)
	}
	laps.lap("start")
	if err := d.load(ctx, client, target, images, r.IDs); err != nil {
		return err
	}
	laps.lap("load")
	s, err := p.Restore(ctx, criu.RestoreOptions{})
	if err != nil {
		return criuError(err)
	}
	if err := errors.Join(guestError(client.ReleaseStem()), container.WakeInit()); err != nil {
		return err
	}
	release()
	laps.lap("restore")
	laps.add("criu_build", s.Build)
	// Nobody sees an end any more that was another past's once the stem has refreshed its records.
	err = c.Guest().Ready(ctx)
	laps.lap("ready")
	d.log.Debug("processes restored", laps.attrs...)
	return err
}

// starting is the helper of a restore on its way: what it takes to start it is done while
// the sandbox's processes end.
type starting struct {
	done chan struct{}
	p    *criu.Prepared
	err  error
}

func (d dumps) startRestore(ctx context.Context, target criu.Target, images *os.File) *starting {
	s := &starting{done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.p, s.err = d.c.StartRestore(ctx, target, images)
	}()
	return s
}

func (s *starting) wait() (*criu.Prepared, error) {
	<-s.done
	return s.p, s.err
}

func (s *starting) close() {
	if p, err := s.wait(); err == nil {
		p.Close()
	}
}

// load puts into the container what belongs to the processes and is not in CRIU's images.
func (d dumps) load(ctx context.Context, client *stem.Client, target criu.Target, images *os.File, ids []string) error {
	if err := criu.RestoreShm(ctx, target, images); err != nil {
		return criuError(err)
	}
	if err := criu.RestoreIPC(ctx, target, images); err != nil {
		return criuError(err)
	}
	fd, err := unix.Openat(int(images.Fd()), carriedName, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("read %s: %w", carriedName, err)
	}
	f := os.NewFile(uintptr(fd), carriedName)
	defer f.Close()
	return guestError(errors.Join(client.LoadFiles(f), client.Revive(ids)))
}

// criuError gives an error of CRIU the domain's code.
func criuError(err error) error {
	if err == nil {
		return nil
	}
	var domain *sandbox.Error
	if errors.As(err, &domain) {
		return err
	}
	var e *criu.Error
	if !errors.As(err, &e) {
		return err
	}
	code := sandbox.CodeInternal
	switch e.Code {
	case criu.CodeUnsupported, criu.CodeUnavailable, criu.CodeRights:
		code = sandbox.CodeUnsupported
	case criu.CodeNoSpace:
		code = sandbox.CodeNoSpace
	case criu.CodeTimeout, criu.CodeStuck:
		code = sandbox.CodeTimeout
	case criu.CodeGone:
		code = sandbox.CodeConflict
	case criu.CodeImages:
		code = sandbox.CodeCorrupt
	case criu.CodeAborted:
		code = sandbox.CodeCancelled
	case criu.CodeInterrupted, criu.CodeFailed, criu.CodeInternal:
	}
	plain := *e
	plain.Err = nil
	return sandbox.Wrap(err, code, "%s", plain.Error())
}
