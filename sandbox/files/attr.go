package files

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// Attr is what [Root.SetAttr] changes; nil leaves a field as it is.
type Attr struct {
	Mode     *uint32 // 0 to 07777; not for symlinks
	UID, GID *uint32 // inside
	ModTime  *time.Time
}

// SetAttr changes mode, owner or time of what path names. With follow, a symlink
// at the end is followed. A change of owner clears the set-id bits unless Mode is
// given too. Errors: ErrNotFound, ErrOutside, ErrInvalid, ErrReadOnly.
func (r *Root) SetAttr(ctx context.Context, path string, follow bool, attr Attr) (Info, error) {
	var info Info
	err := errors.Join(ctx.Err(), checkMode(attr.Mode))
	if err == nil {
		err = r.change(0, 0, func(a *actor) error {
			flags := uint64(unix.O_PATH)
			if !follow {
				flags |= unix.O_NOFOLLOW
			}
			f, err := r.open(path, flags)
			if err != nil {
				return err
			}
			defer f.close()
			return a.setAttr(f, attr)
		})
	}
	if err == nil {
		info, err = r.stat(path, follow)
	}
	return info, fail("set attributes", path, err)
}

// setAttr changes the file of which f is an O_PATH descriptor.
func (a *actor) setAttr(f fd, attr Attr) error {
	if attr.UID != nil || attr.GID != nil {
		u, g := -1, -1
		if attr.UID != nil {
			u = int(a.r.uid + *attr.UID)
		}
		if attr.GID != nil {
			g = int(a.r.gid + *attr.GID)
		}
		if value(attr.UID, 0) >= IDs || value(attr.GID, 0) >= IDs {
			return because(ErrInvalid, "owner is not within 0..%d", IDs-1)
		}
		if err := unix.Fchownat(int(f), "", u, g, unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	if attr.Mode != nil {
		var st unix.Statx_t
		if err := statx(int(f), "", unix.AT_EMPTY_PATH, &st); err != nil {
			return err
		}
		if typeOf(st.Mode) == TypeSymlink {
			return because(ErrSymlink, "a symlink has no mode")
		}
		if err := unix.Chmod(procPath(f), *attr.Mode); err != nil {
			return err
		}
	}
	if attr.ModTime != nil {
		return setTime(f, "", *attr.ModTime, unix.AT_EMPTY_PATH)
	}
	return nil
}

// setTime sets the time of the last change of content.
func setTime(dir fd, name string, t time.Time, flags int) error {
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: t.Unix(), Nsec: int64(t.Nanosecond())}}
	return unix.UtimesNanoAt(int(dir), name, ts, flags)
}
