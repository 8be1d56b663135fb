package overlay

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Quota limits what the files of one project take together. Project 0 is no
// project: nothing is limited or counted. A limit of 0 is no limit.
type Quota struct {
	Project uint32
	Bytes   int64
	Inodes  int64
}

const (
	projectQuota  = 2 // PRJQUOTA
	quotaGet      = 0x800007
	quotaSet      = 0x800008
	quotaLimits   = 1 | 4 // QIF_BLIMITS, QIF_ILIMITS
	quotaBlock    = 1024  // the unit of the block limits
	fsGetXattr    = 0x801c581f
	fsSetXattr    = 0x401c5820
	projInherit   = 0x200
	probedProject = 0xfffffff0
)

// diskQuota is struct if_dqblk.
type diskQuota struct {
	bHard, bSoft, space  uint64
	iHard, iSoft, inodes uint64
	bTime, iTime         uint64
	valid                uint32
	_                    uint32
}

// fsxattr is struct fsxattr.
type fsxattr struct {
	flags, extsize, nextents, project, cowextsize uint32
	_                                             [8]byte
}

// SetQuota sets the limits of q.Project. The error is ErrNoQuota where the
// pool's file system doesn't enforce them.
func (p *Pool) SetQuota(q Quota) error {
	if !p.features.ProjectQuota {
		return ErrNoQuota
	}
	return p.setQuota(q)
}

func (p *Pool) setQuota(q Quota) error {
	blocks := (uint64(max(q.Bytes, 0)) + quotaBlock - 1) / quotaBlock
	d := diskQuota{
		bHard: blocks, bSoft: blocks,
		iHard: uint64(max(q.Inodes, 0)), iSoft: uint64(max(q.Inodes, 0)),
		valid: quotaLimits,
	}
	if err := p.quotactl(quotaSet, q.Project, &d); err != nil {
		return fmt.Errorf("overlay: set quota of project %d: %w", q.Project, err)
	}
	return nil
}

// ProjectUsage says how many bytes and inodes the project's files take. The
// error is ErrNoQuota where the pool's file system doesn't count.
func (p *Pool) ProjectUsage(project uint32) (bytes, inodes int64, err error) {
	if !p.features.ProjectQuota {
		return 0, 0, ErrNoQuota
	}
	var d diskQuota
	if err := p.quotactl(quotaGet, project, &d); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return 0, 0, nil
		}
		return 0, 0, fmt.Errorf("overlay: usage of project %d: %w", project, err)
	}
	return int64(d.space), int64(d.inodes), nil
}

func (p *Pool) quotactl(cmd int, project uint32, d *diskQuota) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, p.root.Fd(),
		uintptr(cmd<<8|projectQuota), uintptr(project), uintptr(unsafe.Pointer(d)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// setProject puts a directory into a project that everything made in it
// inherits.
func setProject(dir string, project uint32) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	var a fsxattr
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fsGetXattr, uintptr(unsafe.Pointer(&a))); errno != 0 {
		return &os.PathError{Op: "FS_IOC_FSGETXATTR", Path: dir, Err: errno}
	}
	a.project = project
	a.flags |= projInherit
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fsSetXattr, uintptr(unsafe.Pointer(&a))); errno != 0 {
		return &os.PathError{Op: "FS_IOC_FSSETXATTR", Path: dir, Err: errno}
	}
	return nil
}

// probeQuota sets a limit on a project nobody has, reads it back, and puts a
// directory into it.
func (p *Pool) probeQuota(dir string) bool {
	want := Quota{Project: probedProject, Bytes: 1 << 20, Inodes: 16}
	if p.setQuota(want) != nil {
		return false
	}
	defer func() {
		if err := p.setQuota(Quota{Project: probedProject}); err != nil {
			p.log.Warn("overlay: probing quota left behind", "err", err)
		}
	}()
	var got diskQuota
	if p.quotactl(quotaGet, probedProject, &got) != nil || got.bHard != 1024 || got.iHard != 16 {
		return false
	}
	return setProject(dir, probedProject) == nil
}
