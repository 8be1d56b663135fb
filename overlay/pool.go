package overlay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Options changes how a pool is opened.
type Options struct {
	// Logger gets what has no caller to be told; slog.Default() if nil.
	Logger *slog.Logger
	// PrivateMounts makes overlays the way kernels before 6.15 need it,
	// even where the kernel could do without.
	PrivateMounts bool
}

// Pool is a directory of layers. One process at a time has it open. Its
// methods may be called concurrently, on different layers.
type Pool struct {
	dir      string
	root     *os.File
	lock     *os.File
	proc     *os.File
	log      *slog.Logger
	features Features
	private  bool
	serial   atomic.Uint64
	fail     func(step string) error // tests make a step of an attach fail
}

const (
	layersDir   = "l"
	skeletonDir = "skel"
	stagingDir  = "tmp"
	filesDir    = "fs"
	workDir     = "work"
	manifest    = "manifest"
	indexFile   = "index"
	lockFile    = "lock"
)

// Open opens the pool in dir, which must be an absolute path, and makes it
// if there is none. What earlier processes left unfinished is removed.
// The error is ErrLocked if another process has it open.
func Open(dir string, o Options) (_ *Pool, err error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("overlay: pool directory %q is not absolute", dir)
	}
	p := &Pool{dir: filepath.Clean(dir), log: o.Logger, private: o.PrivateMounts}
	if p.log == nil {
		p.log = slog.Default()
	}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	// The root of a container's user namespace must get to the skeleton;
	// nobody but root to the layers, which hold sandboxes' setuid files.
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("overlay: make pool: %w", err)
	}
	for _, d := range []string{layersDir, stagingDir} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, fmt.Errorf("overlay: make pool: %w", err)
		}
	}
	if p.lock, err = os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, fmt.Errorf("overlay: lock pool: %w", err)
	}
	if err := unix.Flock(int(p.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", ErrLocked, dir)
		}
		return nil, fmt.Errorf("overlay: lock pool: %w", err)
	}
	if p.root, err = os.Open(dir); err != nil {
		return nil, fmt.Errorf("overlay: open pool: %w", err)
	}
	if p.proc, err = os.Open("/proc"); err != nil {
		return nil, fmt.Errorf("overlay: open /proc: %w", err)
	}
	if err := p.emptyStaging(); err != nil {
		return nil, err
	}
	if err := makeSkeleton(p.path(skeletonDir)); err != nil {
		return nil, err
	}
	if p.features, err = p.probe(); err != nil {
		return nil, err
	}
	if !p.features.DetachedIDMap {
		p.private = true
	}
	return p, nil
}

// Close lets go of the pool. What is attached stays attached.
func (p *Pool) Close() error {
	var errs []error
	for _, f := range []*os.File{p.proc, p.root, p.lock} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// Dir is the pool's directory.
func (p *Pool) Dir() string { return p.dir }

// Features says what the pool's file system and the kernel can do.
func (p *Pool) Features() Features { return p.features }

// Skeleton is the directory that is at the bottom of every stack: mount
// points and nothing else. It is the root of blank containers.
func (p *Pool) Skeleton() string { return p.path(skeletonDir) }

// LayerPath is the directory of layer id's files, in overlayfs format.
func (p *Pool) LayerPath(id string) string { return p.path(layersDir, id, filesDir) }

func (p *Pool) path(elem ...string) string {
	return filepath.Join(append([]string{p.dir}, elem...)...)
}

func (p *Pool) layer(elem ...string) string {
	return p.path(append([]string{layersDir}, elem...)...)
}

func checkID(id string) error {
	if len(id) == 0 || len(id) > 64 {
		return fmt.Errorf("%w: %q", ErrBadID, id)
	}
	for i := range len(id) {
		c := id[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' {
			continue
		}
		return fmt.Errorf("%w: %q", ErrBadID, id)
	}
	return nil
}

// check returns an error unless every id is that of a layer in the pool.
func (p *Pool) check(ids ...string) error {
	for _, id := range ids {
		ok, err := p.Exists(id)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%w: %s", ErrNotFound, id)
		}
	}
	return nil
}

// Exists says whether layer id is in the pool.
func (p *Pool) Exists(id string) (bool, error) {
	if err := checkID(id); err != nil {
		return false, err
	}
	var st unix.Stat_t
	err := unix.Lstat(p.LayerPath(id), &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("overlay: layer %s: %w", id, err)
	}
	return true, nil
}

// List gives the ids of all layers, sorted.
func (p *Pool) List() ([]string, error) {
	es, err := os.ReadDir(p.path(layersDir))
	if err != nil {
		return nil, fmt.Errorf("overlay: list layers: %w", err)
	}
	ids := make([]string, 0, len(es))
	for _, e := range es {
		if checkID(e.Name()) == nil {
			ids = append(ids, e.Name())
		}
	}
	sort.Strings(ids)
	return ids, nil
}

// Remove deletes layer id; that it isn't there is no error. The layer is
// gone from the pool at once; its files go one by one, and those that ctx or
// a crash keeps from going are removed when the pool is opened again.
func (p *Pool) Remove(ctx context.Context, id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	to := p.staging("rm-" + id)
	if err := unix.Rename(p.layer(id), to); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return fmt.Errorf("overlay: remove layer %s: %w", id, err)
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if err := os.RemoveAll(to); err != nil {
		return fmt.Errorf("overlay: remove layer %s: %w", id, err)
	}
	return nil
}

// staging makes up a path for something unfinished.
func (p *Pool) staging(what string) string {
	return p.path(stagingDir, what+"."+strconv.FormatUint(p.serial.Add(1), 10))
}

func (p *Pool) emptyStaging() error {
	es, err := os.ReadDir(p.path(stagingDir))
	if err != nil {
		return fmt.Errorf("overlay: empty staging: %w", err)
	}
	for _, e := range es {
		if err := os.RemoveAll(p.path(stagingDir, e.Name())); err != nil {
			return fmt.Errorf("overlay: empty staging: %w", err)
		}
	}
	return nil
}

// stage makes an unfinished layer with an empty fs, lets fill work on it and,
// if it returns nil, moves it into the pool as id. fill gets the layer's
// directory.
func (p *Pool) stage(id string, fill func(dir string) error) error {
	s, err := p.newStage(id)
	if err != nil {
		return err
	}
	defer s.drop()
	if err := fill(s.dir); err != nil {
		return err
	}
	return s.commit()
}

// stage is a layer that is not in the pool yet.
type stage struct {
	pool *Pool
	id   string
	dir  string
	done bool // moved into the pool
}

// newStage makes one with an empty fs.
func (p *Pool) newStage(id string) (*stage, error) {
	if ok, err := p.Exists(id); err != nil {
		return nil, err
	} else if ok {
		return nil, fmt.Errorf("%w: %s", ErrExists, id)
	}
	s := &stage{pool: p, id: id, dir: p.staging(id)}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("overlay: make layer %s: %w", id, err)
	}
	if err := mkdirExact(filepath.Join(s.dir, filesDir), 0o755); err != nil {
		s.drop()
		return nil, fmt.Errorf("overlay: make layer %s: %w", id, err)
	}
	return s, nil
}

// commit moves the layer into the pool.
func (s *stage) commit() error {
	err := unix.Renameat2(unix.AT_FDCWD, s.dir, unix.AT_FDCWD, s.pool.layer(s.id), unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%w: %s", ErrExists, s.id)
	}
	if err != nil {
		return fmt.Errorf("overlay: make layer %s: %w", s.id, err)
	}
	s.done = true
	return nil
}

// drop removes the layer unless it is in the pool.
func (s *stage) drop() {
	if s.done {
		return
	}
	s.done = true
	if err := os.RemoveAll(s.dir); err != nil {
		s.pool.log.Warn("overlay: staging left behind", "path", s.dir, "err", err)
	}
}

// mkdirExact makes a directory of just that mode, whatever the umask.
func mkdirExact(path string, mode uint32) error {
	if err := unix.Mkdir(path, mode); err != nil {
		return &os.PathError{Op: "mkdir", Path: path, Err: err}
	}
	return os.Chmod(path, os.FileMode(mode))
}
