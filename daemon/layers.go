package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"cairn/overlay"
	"cairn/sandbox"
)

// layers is an overlay.Pool as the domain wants it.
type layers struct{ p *overlay.Pool }

func (l layers) CreateUpper(_ context.Context, id string, project uint32, limitBytes int64) error {
	return layerError(l.p.CreateUpper(id, overlay.Quota{Project: project, Bytes: limitBytes}))
}

func (l layers) WriteIdentity(ctx context.Context, id string, below []string, files map[string]string, dirs []string) error {
	var list []overlay.File
	for path, content := range files {
		list = append(list, overlay.File{Path: path, Content: []byte(content), Mode: 0o644})
	}
	return layerError(l.p.WriteIdentity(ctx, id, below, list, dirs))
}

func (l layers) Prepare(ctx context.Context, t sandbox.Target, s sandbox.Stack) (sandbox.Prepared, error) {
	var binds []overlay.Bind
	for _, m := range t.Mounts {
		binds = append(binds, overlay.Bind{Source: m.Source, Target: m.Target})
	}
	p, err := l.p.Prepare(ctx, overlay.Target{PID: t.PID, UIDBase: t.IDBase, GIDBase: t.IDBase, Hostname: t.Hostname, Binds: binds}, stack(s))
	if err != nil {
		return nil, layerError(err)
	}
	return prepared{p}, nil
}

func stack(s sandbox.Stack) overlay.Stack {
	return overlay.Stack{Upper: s.Upper, Layers: s.Layers}
}

type prepared struct{ p *overlay.Prepared }

func (p prepared) Attach(ctx context.Context) (io.Closer, error) {
	old, err := p.p.Attach(ctx)
	if err != nil {
		return nil, layerError(err)
	}
	return old, nil
}

func (p prepared) Close() error { return layerError(p.p.Close()) }

func (l layers) AttachedUpper(pid int) (string, error) {
	upper, err := overlay.AttachedUpper(pid)
	return upper, layerError(err)
}

// Blockers looks at the agent's processes only. PID 1 and the stem, and whatever
// else runs their program, hold nothing of the root by their making. An agent that
// makes one of them hold something, by ptrace say, harms nobody but itself: what is
// open for writing is refused by the kernel when the old root is made read-only,
// and through anything else nothing can be written any more.
func (l layers) Blockers(pids []int, pid int) ([]sandbox.Blocker, error) {
	pids = agents(pids, pid)
	if len(pids) == 0 {
		return nil, nil
	}
	root, err := l.p.Attached(pid)
	if err != nil {
		return nil, layerError(err)
	}
	found, err := l.p.Blockers(pids, root)
	if err != nil {
		return nil, layerError(err)
	}
	list := make([]sandbox.Blocker, len(found))
	for i, b := range found {
		list[i] = sandbox.Blocker{PID: b.PID, Comm: b.Comm, Reason: string(b.Reason), Path: b.Path}
	}
	return list, nil
}

// agents gives the processes that do not run the program of PID 1.
func agents(pids []int, pid int) []int {
	exe := func(pid int) (st unix.Stat_t, ok bool) {
		return st, unix.Stat(fmt.Sprintf("/proc/%d/exe", pid), &st) == nil
	}
	own, ok := exe(pid)
	if !ok {
		return pids
	}
	return slices.DeleteFunc(slices.Clone(pids), func(p int) bool {
		st, ok := exe(p)
		return ok && st.Dev == own.Dev && st.Ino == own.Ino
	})
}

func (l layers) Empty(upper string) (bool, error) {
	empty, err := l.p.Empty(upper)
	return empty, layerError(err)
}

func (l layers) StartCapture(ctx context.Context, upper, dst, previous string) (sandbox.Capture, error) {
	c, err := l.p.StartCapture(ctx, upper, dst, previous)
	if err != nil {
		return nil, layerError(err)
	}
	return capture{c}, nil
}

type capture struct{ c *overlay.Capture }

func (c capture) Finish(ctx context.Context) (bool, error) {
	unchanged, err := c.c.Finish(ctx)
	return unchanged, layerError(err)
}

func (c capture) Commit(ctx context.Context) error {
	_, err := c.c.Commit(ctx)
	return layerError(err)
}

func (c capture) Close() error { return layerError(c.c.Close()) }

func (l layers) Has(_ context.Context, ids []string, path string) (bool, error) {
	found, err := l.p.Lookup(ids, path)
	return found.Layer >= 0, layerError(err)
}

func (l layers) View(_ context.Context, ids []string) (sandbox.Tree, error) {
	v, err := l.p.View(ids)
	if err != nil {
		return nil, layerError(err)
	}
	return tree{v}, nil
}

func (l layers) MountStack(_ context.Context, s sandbox.Stack) (sandbox.Tree, error) {
	v, err := l.p.MountStack(stack(s))
	if err != nil {
		return nil, layerError(err)
	}
	return tree{v}, nil
}

// tree hands out a descriptor of its own for each caller, who closes it.
type tree struct{ v *overlay.View }

func (t tree) Root() *os.File { return t.v.Root() }
func (t tree) Close() error   { return t.v.Close() }

func (l layers) Diff(ctx context.Context, from, to []string, visit func(sandbox.Change) error) error {
	err := l.p.Diff(ctx, from, to, func(c overlay.Change) error {
		return visit(change(c))
	})
	return layerError(err)
}

func (l layers) Squash(ctx context.Context, dst string, ids, below []string) error {
	return layerError(l.p.Squash(ctx, dst, ids, below))
}

func (l layers) Seal(ctx context.Context, id string) (digest string, bytes, files int64, err error) {
	s, err := l.p.Seal(ctx, id)
	return s.Digest, s.Bytes, s.Files, layerError(err)
}

func (l layers) Verify(ctx context.Context, id, digest string) error {
	return layerError(l.p.Verify(ctx, id, digest))
}

func (l layers) Usage(ctx context.Context, id string) (bytes, files int64, err error) {
	u, err := l.p.Usage(ctx, id)
	return u.Bytes, u.Files, layerError(err)
}

func (l layers) ProjectUsage(project uint32) (int64, bool, error) {
	bytes, _, err := l.p.ProjectUsage(project)
	if errors.Is(err, overlay.ErrNoQuota) {
		return 0, false, nil
	}
	return bytes, err == nil, layerError(err)
}

func (l layers) SetLimit(project uint32, limitBytes int64) error {
	err := l.p.SetQuota(overlay.Quota{Project: project, Bytes: limitBytes})
	if errors.Is(err, overlay.ErrNoQuota) {
		return nil
	}
	return layerError(err)
}

func (l layers) Account(dir string, project uint32) error {
	return layerError(l.p.Account(dir, project))
}

func (l layers) List() ([]string, error) {
	ids, err := l.p.List()
	return ids, layerError(err)
}

func (l layers) Remove(ctx context.Context, id string) error {
	return layerError(l.p.Remove(ctx, id))
}

// layerError gives an error of the pool the domain's code.
func layerError(err error) error {
	if err == nil {
		return nil
	}
	var domain *sandbox.Error
	if errors.As(err, &domain) {
		return err
	}
	var corrupt *overlay.CorruptError
	var mountPoint *overlay.BadMountPointError
	switch {
	case errors.As(err, &corrupt):
		return sandbox.Wrap(err, sandbox.CodeCorrupt, "layer %s is damaged at %q: %s", corrupt.Layer, corrupt.Path, corrupt.What)
	case errors.As(err, &mountPoint):
		return &sandbox.Error{
			Code: sandbox.CodeInvalid, Field: "image", Err: err,
			Message: fmt.Sprintf("the files have something at %s that a sandbox cannot have there: %s", mountPoint.Path, mountPoint.What),
		}
	case errors.Is(err, overlay.ErrBusy):
		return sandbox.Wrap(err, sandbox.CodeBusy, "a process has a file open for writing")
	case errors.Is(err, overlay.ErrNotFound):
		return sandbox.Wrap(err, sandbox.CodeCorrupt, "a layer is missing from the pool")
	case errors.Is(err, overlay.ErrGone):
		return sandbox.Wrap(err, sandbox.CodeConflict, "the sandbox has just ended")
	case errors.Is(err, overlay.ErrTooDeep):
		return sandbox.Wrap(err, sandbox.CodeTooLarge, "the stack has more layers than overlayfs takes")
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return sandbox.Wrap(err, sandbox.CodeNoSpace, "no space is left for layers")
	}
	return err
}

// change gives a difference the domain's form.
func change(c overlay.Change) sandbox.Change {
	const perm = 0o7777
	r := sandbox.Change{
		Path: path.Join("/", c.Path), OldSize: c.OldSize, NewSize: c.NewSize,
		OldMode: c.OldMode & perm, NewMode: c.NewMode & perm, Type: fileType(c.NewMode),
	}
	switch c.Kind {
	case overlay.Added:
		r.Kind = sandbox.ChangeAdded
	case overlay.Deleted:
		r.Kind, r.Type = sandbox.ChangeDeleted, fileType(c.OldMode)
	case overlay.TypeChanged:
		r.Kind, r.OldType = sandbox.ChangeType, fileType(c.OldMode)
	case overlay.Modified:
		r.Kind = sandbox.ChangeModified
	default:
		r.Kind = sandbox.ChangeMetadata
	}
	return r
}

// fileType names the type in a st_mode.
func fileType(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "file"
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFLNK:
		return "symlink"
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFSOCK:
		return "socket"
	}
	return "device"
}
