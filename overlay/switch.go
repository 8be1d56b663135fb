package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Attach replaces the container's root. The container's processes whose root
// or working directory is the old root are in the new one afterwards, and
// every mount directly on the old root is at the same place of the new one.
// On an error everything is as it was.
//
// Errors: ErrBusy when somebody has a file of the old root open for writing,
// BadMountPointError, ErrGone. The context is looked at before the switch,
// which takes well under a millisecond, begins.
func (pr *Prepared) Attach(ctx context.Context) (*Replaced, error) {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	if pr.mnt == nil {
		return nil, errors.New("overlay: already attached or closed")
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	start := time.Now()
	sw := &switcher{pr: pr, pool: pr.pool}
	err := onThread(sw.run)
	sw.closeAll()
	if err != nil {
		return nil, fmt.Errorf("overlay: attach %s: %w", pr.stack.Upper, err)
	}
	pr.timing.Switch = time.Since(start)
	_ = pr.release()
	return &Replaced{Timings: pr.timing, old: sw.old}, nil
}

// switcher is one replacement of a root, run on a thread of its own.
type switcher struct {
	pr   *Prepared
	pool *Pool

	newRoot *os.File // the overlay's root directory
	old     *os.File // the old root, O_PATH
	subs    []submount
	undo    []func() error // what is done so far, undone backwards
	opened  []*os.File
}

// submount is a mount directly on the old root.
type submount struct {
	id  int // in mountinfo; 0 for a bind that is new
	rel string
	fd  *os.File // the mount
	to  *os.File // where it goes
}

func (s *switcher) run() (err error) {
	pr := s.pr
	defer func() {
		if err == nil {
			return
		}
		for _, f := range slices.Backward(s.undo) {
			if uerr := f(); uerr != nil {
				err = fmt.Errorf("%w (and undoing it: %w)", err, uerr)
			}
		}
		if s.old != nil {
			s.old.Close()
			s.old = nil
		}
	}()
	table, err := s.pool.mountTable(pr.target.PID)
	if err != nil {
		return err
	}
	root, err := rootMount(table)
	if err != nil {
		return err
	}
	mntns, err := s.pool.openProc(pr.target.PID, "ns/mnt", unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer mntns.Close()
	utsns, err := s.pool.openProc(pr.target.PID, "ns/uts", unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer utsns.Close()
	// Those were the target's if it still lives now.
	if err := pr.alive(); err != nil {
		return err
	}
	if err := becomeOwner(pr.target.UIDBase, pr.target.GIDBase); err != nil {
		return fmt.Errorf("take the identity of the range: %w", err)
	}
	if err := s.pool.inheritRoot(pr.mnt, pr.stack, pr.target.UIDBase, pr.target.GIDBase); err != nil {
		return err
	}
	if s.newRoot, err = s.keep(openDir(int(pr.mnt.Fd()), ".")); err != nil {
		return fmt.Errorf("open the new root: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare fs: %w", err)
	}
	if err := unix.Setns(int(mntns.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter mount namespace: %w", err)
	}
	return s.inside(root, table, utsns)
}

// inside does the part that runs in the container's mount namespace.
func (s *switcher) inside(root mountEntry, table []mountEntry, utsns *os.File) error {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the old root: %w", err)
	}
	s.old = os.NewFile(uintptr(fd), "/")
	if id, err := mountID(fd); err != nil {
		return err
	} else if id != root.id {
		return fmt.Errorf("root is mount %d, expected %d", id, root.id)
	}
	if err := s.findSubmounts(root, table); err != nil {
		return err
	}
	for i := range s.subs {
		if err := s.findTarget(&s.subs[i]); err != nil {
			return err
		}
	}
	if root.upper() != "" {
		if err := s.sealOld(); err != nil {
			return err
		}
	}
	if err := s.setHostname(utsns); err != nil {
		return err
	}
	return s.swap()
}

// findSubmounts opens every mount that is directly on the old root, and adds
// the binds whose place is free.
func (s *switcher) findSubmounts(root mountEntry, table []mountEntry) error {
	taken := map[string]bool{}
	for _, m := range table {
		if m.parent != root.id || m.id == root.id || m.at == "/" {
			continue
		}
		rel := strings.TrimPrefix(m.at, "/")
		taken[rel] = true
		f, err := s.keep(resolve(s.old, rel))
		if err != nil {
			return fmt.Errorf("open mount %s: %w", m.at, err)
		}
		if id, err := mountID(int(f.Fd())); err != nil {
			return err
		} else if id != m.id {
			return fmt.Errorf("mount at %s is %d, expected %d", m.at, id, m.id)
		}
		s.subs = append(s.subs, submount{id: m.id, rel: rel, fd: f})
	}
	for _, b := range s.pr.binds {
		if !taken[b.target] {
			s.subs = append(s.subs, submount{rel: b.target, fd: b.tree})
		}
	}
	return nil
}

// findTarget finds the place for a mount in the new root. One that is gone,
// because a layer hides what the skeleton has there, is made anew.
func (s *switcher) findTarget(m *submount) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(m.fd.Fd()), &st); err != nil {
		return fmt.Errorf("stat mount /%s: %w", m.rel, err)
	}
	to, err := s.keep(resolve(s.newRoot, m.rel))
	if errors.Is(err, unix.ENOENT) {
		if err := makeMountPoint(s.newRoot, m.rel, isDir(&st)); err != nil {
			return badMountPoint(m.rel, err)
		}
		to, err = s.keep(resolve(s.newRoot, m.rel))
	}
	if err != nil {
		return badMountPoint(m.rel, err)
	}
	var at unix.Stat_t
	if err := unix.Fstat(int(to.Fd()), &at); err != nil {
		return badMountPoint(m.rel, err)
	}
	if at.Mode&unix.S_IFMT == unix.S_IFLNK {
		return badMountPoint(m.rel, unix.ELOOP)
	}
	if isDir(&at) != isDir(&st) {
		return badMountPoint(m.rel, unix.ENOTDIR)
	}
	m.to = to
	return nil
}

func badMountPoint(rel string, err error) error {
	what := err.Error()
	switch {
	case errors.Is(err, unix.ELOOP):
		what = "is a symbolic link, or has one on the way"
	case errors.Is(err, unix.ENOTDIR):
		what = "is a file where a directory is needed, or the other way round"
	}
	return &BadMountPointError{Path: "/" + rel, What: what, Err: err}
}

// resolve opens what is at a path below a directory, never through a
// symbolic link or out of it.
func resolve(dir *os.File, rel string) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	}
	for range 16 {
		fd, err := unix.Openat2(int(dir.Fd()), rel, &how)
		if err == nil {
			return os.NewFile(uintptr(fd), rel), nil
		}
		// A rename somewhere made the kernel unsure.
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
	}
	return nil, unix.EAGAIN
}

// makeMountPoint makes a directory or an empty file at a path, and the
// directories on the way.
func makeMountPoint(root *os.File, rel string, dir bool) error {
	at := root
	names := strings.Split(rel, "/")
	for i, name := range names {
		last := i == len(names)-1
		if last && !dir {
			fd, err := unix.Openat(int(at.Fd()), name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		}
		if err := unix.Mkdirat(int(at.Fd()), name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		if last {
			return nil
		}
		next, err := openDir(int(at.Fd()), name)
		if err != nil {
			return err
		}
		defer next.Close()
		at = next
	}
	return nil
}

// sealOld makes the old root read-only, which the kernel refuses while
// anybody has a file of it open for writing. From then on nothing that is
// missed elsewhere can write to a layer that is to be immutable.
func (s *switcher) sealOld() error {
	err := unix.MountSetattr(int(s.old.Fd()), "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if errors.Is(err, unix.EBUSY) {
		return ErrBusy
	}
	if err != nil {
		return fmt.Errorf("make the old root read-only: %w", err)
	}
	s.undo = append(s.undo, func() error {
		return unix.MountSetattr(int(s.old.Fd()), "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
	})
	return s.step("sealed")
}

func (s *switcher) setHostname(utsns *os.File) error {
	name := s.pr.target.Hostname
	if name == "" {
		return nil
	}
	if err := unix.Setns(int(utsns.Fd()), unix.CLONE_NEWUTS); err != nil {
		return fmt.Errorf("enter uts namespace: %w", err)
	}
	var was unix.Utsname
	if err := unix.Uname(&was); err != nil {
		return fmt.Errorf("uname: %w", err)
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	s.undo = append(s.undo, func() error {
		return unix.Sethostname([]byte(unix.ByteSliceToString(was.Nodename[:])))
	})
	return s.step("hostname")
}

// swap puts the overlay over the old root, moves the mounts over and makes
// it the root.
func (s *switcher) swap() error {
	mnt := int(s.pr.mnt.Fd())
	if err := unix.MoveMount(mnt, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("put the overlay over the root: %w", err)
	}
	if err := unix.Fchdir(int(s.newRoot.Fd())); err != nil {
		return fmt.Errorf("enter the new root: %w", err)
	}
	s.undo = append(s.undo, func() error {
		if err := unix.Fchdir(int(s.newRoot.Fd())); err != nil {
			return err
		}
		return unix.Unmount(".", unix.MNT_DETACH)
	})
	if err := s.step("stacked"); err != nil {
		return err
	}
	for _, m := range s.subs {
		if err := moveTo(m.fd, m.to); err != nil {
			return badMountPoint(m.rel, fmt.Errorf("move mount: %w", err))
		}
		s.undo = append(s.undo, func() error { return s.moveBack(m) })
		if err := s.step("moved " + path.Clean(m.rel)); err != nil {
			return err
		}
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	// The old root is now over the new one, and "." is still the new one.
	s.undo = append(s.undo, func() error {
		if err := unix.Fchdir(int(s.old.Fd())); err != nil {
			return err
		}
		return unix.PivotRoot(".", ".")
	})
	if err := s.step("pivoted"); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach the old root: %w", err)
	}
	s.undo = nil
	return nil
}

// moveBack puts a mount back on the old root, or a new bind back to nowhere.
func (s *switcher) moveBack(m submount) error {
	if m.id == 0 {
		// Goes with the overlay, which is detached next.
		return nil
	}
	to, err := resolve(s.old, m.rel)
	if err != nil {
		return err
	}
	defer to.Close()
	return moveTo(m.fd, to)
}

func moveTo(mount, to *os.File) error {
	return unix.MoveMount(int(mount.Fd()), "", int(to.Fd()), "",
		unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// mountID is the id that mountinfo shows for the mount of an open file.
func mountID(fd int) (int, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return 0, os.NewSyscallError("statx", err)
	}
	return int(st.Mnt_id), nil
}

func (s *switcher) keep(f *os.File, err error) (*os.File, error) {
	if err == nil {
		s.opened = append(s.opened, f)
	}
	return f, err
}

func (s *switcher) closeAll() {
	for _, f := range s.opened {
		f.Close()
	}
}

func (s *switcher) step(name string) error {
	return s.pool.reached(name)
}

// reached makes a step fail, if a test says so.
func (p *Pool) reached(step string) error {
	if p.fail == nil {
		return nil
	}
	return p.fail(step)
}
