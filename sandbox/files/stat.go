package files

import (
	"context"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const statMask = unix.STATX_BASIC_STATS

func statx(dir int, name string, flags int, st *unix.Statx_t) error {
	for {
		err := unix.Statx(dir, name, flags|unix.AT_NO_AUTOMOUNT|unix.AT_SYMLINK_NOFOLLOW, statMask, st)
		if err != unix.EINTR {
			return err
		}
	}
}

// Stat describes what path names. With follow, a symlink at the end is followed.
// Errors: ErrNotFound, ErrNotDir, ErrBadPath, ErrOutside, ErrSymlink.
func (r *Root) Stat(ctx context.Context, path string, follow bool) (Info, error) {
	if err := ctx.Err(); err != nil {
		return Info{}, fail("stat", path, err)
	}
	info, err := r.stat(path, follow)
	return info, fail("stat", path, err)
}

func (r *Root) stat(p string, follow bool) (Info, error) {
	flags := uint64(unix.O_PATH)
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	f, err := r.open(p, flags)
	if err != nil {
		return Info{}, err
	}
	defer f.close()
	var st unix.Statx_t
	if err := statx(int(f), "", unix.AT_EMPTY_PATH, &st); err != nil {
		return Info{}, err
	}
	info := r.info(path.Base(p), &st)
	if info.Type == TypeSymlink {
		target, err := readlink(f)
		if err != nil {
			return Info{}, err
		}
		info.Target, info.TargetBytes = text(target)
	}
	// The root is a mount of its own; that is no news to anybody.
	info.Mount = false
	return info, nil
}

func (r *Root) info(name string, st *unix.Statx_t) Info {
	i := Info{
		Type:    typeOf(st.Mode),
		Mode:    uint32(st.Mode) & 0o7777,
		Size:    int64(st.Size),
		Blocks:  int64(st.Blocks) * 512,
		UID:     inside(st.Uid, r.uid),
		GID:     inside(st.Gid, r.gid),
		Links:   st.Nlink,
		Inode:   st.Ino,
		ModTime: modTime(st),
		Mount:   st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0,
	}
	i.Name, i.NameBytes = text(name)
	return i
}

func modTime(st *unix.Statx_t) time.Time {
	return time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec)).UTC()
}

// text returns s as UTF-8, and its bytes if that is not what they are.
func text(s string) (string, []byte) {
	if utf8.ValidString(s) {
		return s, nil
	}
	return strings.ToValidUTF8(s, "\uFFFD"), []byte(s)
}

func typeOf(mode uint16) Type {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return TypeDir
	case unix.S_IFLNK:
		return TypeSymlink
	case unix.S_IFIFO:
		return TypeFIFO
	case unix.S_IFSOCK:
		return TypeSocket
	case unix.S_IFCHR:
		return TypeChar
	case unix.S_IFBLK:
		return TypeBlock
	default:
		return TypeFile
	}
}
