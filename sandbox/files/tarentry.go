package files

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"strings"

	"golang.org/x/sys/unix"
)

// topEntry gives the target the archive's metadata, if it has just been made.
func (t *tarReader) topEntry(h *tar.Header, uid, gid uint32) error {
	if h.Typeflag != tar.TypeDir {
		return because(ErrBadArchive, "an entry without a name is not a directory")
	}
	if !t.made {
		return nil
	}
	if err := t.dirMeta(t.top, h, uid, gid); err != nil {
		return err
	}
	t.pending = append(t.pending, dirTime{"", h.ModTime})
	return nil
}

func (t *tarReader) dir(p *place, h *tar.Header, uid, gid uint32) error {
	if p.exists() && p.kind() != TypeDir {
		return because(ErrNotDir, "a %s stands where the archive has a directory", p.kind())
	}
	if !p.exists() {
		if err := t.a.mkdir(p.dir, p.name, uint32(h.Mode)&0o7777); err != nil {
			return err
		}
	}
	f, err := child(p.dir, p.name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer f.close()
	return t.dirMeta(f, h, uid, gid)
}

func (t *tarReader) dirMeta(f fd, h *tar.Header, uid, gid uint32) error {
	mode := uint32(h.Mode) & 0o7777
	if err := t.a.setAttr(f, Attr{Mode: &mode, UID: &uid, GID: &gid}); err != nil {
		return err
	}
	return setXattrs(f, t.xattrs(h))
}

// xattrs returns the user.* attributes of an entry and counts the others.
func (t *tarReader) xattrs(h *tar.Header) map[string]string {
	var m map[string]string
	for k, v := range h.PAXRecords {
		name, ok := strings.CutPrefix(k, xattrRecord)
		switch {
		case !ok:
		case !strings.HasPrefix(name, userXattr):
			t.stats.Skipped++
		default:
			if m == nil {
				m = make(map[string]string)
			}
			m[name] = v
		}
	}
	return m
}

func (t *tarReader) file(p *place, h *tar.Header, uid, gid uint32, content io.Reader) error {
	if h.Size > t.bytes {
		return because(ErrTooLarge, "%d bytes, only %d more are allowed", h.Size, t.bytes)
	}
	t.bytes -= h.Size
	n, err := t.a.newFile(p.dir)
	if err != nil {
		return err
	}
	defer n.discard()
	if err := n.fill(t.ctx, content, h.Size); err != nil {
		return contentError(t.ctx, err)
	}
	if err := setXattrs(n.fd(), t.xattrs(h)); err != nil {
		return err
	}
	if err := n.own(t.a, uid, gid, uint32(h.Mode)&0o7777); err != nil {
		return err
	}
	if err := setTime(n.fd(), "", h.ModTime, unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	if err := n.install(p, false); err != nil {
		return err
	}
	t.stats.Bytes += h.Size
	return nil
}

// contentError tells a damaged archive from a failed reader: fill has marked both
// as the reader's.
func contentError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var outer *sourceError
	if !errors.As(err, &outer) {
		return err
	}
	return archiveError(outer.err)
}

// replace puts the entry that mk makes under a temporary name in the place.
func (p *place) replace(mk func(temp string) error) error {
	temp := tempName()
	// Needed after success too: between two names of one file, rename does nothing
	// and succeeds.
	defer func() { _ = unix.Unlinkat(int(p.dir), temp, 0) }()
	if err := mk(temp); err != nil {
		return err
	}
	return unix.Renameat2(int(p.dir), temp, int(p.dir), p.name, 0)
}

func (t *tarReader) symlink(p *place, h *tar.Header, gid uint32) error {
	if h.Linkname == "" || len(h.Linkname) > pathMax || strings.IndexByte(h.Linkname, 0) >= 0 {
		return because(ErrBadArchive, "bad target of a symlink")
	}
	return p.replace(func(temp string) error {
		if err := unix.Symlinkat(h.Linkname, int(p.dir), temp); err != nil {
			return err
		}
		// A directory may have passed its group on.
		err := unix.Fchownat(int(p.dir), temp, -1, int(t.r.gid+gid), unix.AT_SYMLINK_NOFOLLOW)
		if err == nil {
			err = setTime(p.dir, temp, h.ModTime, unix.AT_SYMLINK_NOFOLLOW)
		}
		return err
	})
}

func (t *tarReader) link(p *place, h *tar.Header) error {
	target, err := t.clean(h.Linkname)
	if err == nil && target == "" {
		err = because(ErrBadArchive, "no target")
	}
	if err != nil {
		return because(codeOf(err), "hard link to %q: %w", h.Linkname, err)
	}
	f, err := openat2(int(t.top), target, unix.O_PATH|unix.O_NOFOLLOW, beneath)
	if err != nil {
		return because(codeOf(err), "hard link to %q: %w", h.Linkname, err)
	}
	defer f.close()
	var st unix.Statx_t
	if err := statx(int(f), "", unix.AT_EMPTY_PATH, &st); err != nil {
		return err
	}
	if k := typeOf(st.Mode); k != TypeFile && k != TypeFIFO {
		return because(ErrBadArchive, "hard link to %q, which is a %s", h.Linkname, k)
	}
	return p.replace(func(temp string) error {
		return unix.Linkat(int(f), "", int(p.dir), temp, unix.AT_EMPTY_PATH)
	})
}

func (t *tarReader) fifo(p *place, h *tar.Header, uid, gid uint32) error {
	return p.replace(func(temp string) error {
		if err := unix.Mknodat(int(p.dir), temp, unix.S_IFIFO|0o600, 0); err != nil {
			return err
		}
		f, err := child(p.dir, temp, unix.O_PATH)
		if err != nil {
			return err
		}
		defer f.close()
		mode := uint32(h.Mode) & 0o7777
		return t.a.setAttr(f, Attr{Mode: &mode, UID: &uid, GID: &gid, ModTime: &h.ModTime})
	})
}
