package overlay

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// rootXattr is kept on a layer's own directory: what the upper's root
// directory was like when it was attached first.
const rootXattr = "trusted.cairn.root"

// CreateUpper makes an empty layer that can be attached as an upper. If
// q.Project is not 0, what is written to it counts towards that project;
// where the pool has no project quota that does nothing.
func (p *Pool) CreateUpper(id string, q Quota) error {
	return p.stage(id, func(dir string) error {
		work := filepath.Join(dir, workDir)
		if err := mkdirExact(work, 0o755); err != nil {
			return fmt.Errorf("overlay: make upper %s: %w", id, err)
		}
		if q.Project == 0 || !p.features.ProjectQuota {
			return nil
		}
		if err := p.SetQuota(q); err != nil {
			return err
		}
		for _, d := range []string{filepath.Join(dir, filesDir), work} {
			if err := setProject(d, q.Project); err != nil {
				return fmt.Errorf("overlay: make upper %s: %w", id, err)
			}
		}
		return nil
	})
}

// Empty says whether nothing was changed through an upper: it has no
// entries, and its root directory's mode, owner and extended attributes are
// those that it was attached with. (The directory's times don't count.)
func (p *Pool) Empty(id string) (bool, error) {
	if err := checkID(id); err != nil {
		return false, err
	}
	d, err := openDir(unix.AT_FDCWD, p.LayerPath(id))
	if err != nil {
		if errors.Is(err, unix.ENOENT) {
			return false, fmt.Errorf("%w: %s", ErrNotFound, id)
		}
		return false, fmt.Errorf("overlay: layer %s: %w", id, err)
	}
	defer d.Close()
	if names, err := d.Readdirnames(1); len(names) > 0 {
		return false, nil
	} else if len(names) == 0 && err != nil && !isEOF(err) {
		return false, fmt.Errorf("overlay: layer %s: %w", id, err)
	}
	now, err := rootFingerprint(int(d.Fd()), 0, 0)
	if err != nil {
		return false, fmt.Errorf("overlay: layer %s: %w", id, err)
	}
	was, err := p.recordedRoot(id)
	if err != nil {
		return false, err
	}
	if was == "" {
		was = freshRoot()
	}
	return now == was, nil
}

// freshRoot is the fingerprint of a root directory that CreateUpper made.
func freshRoot() string { return fingerprint(0o755, 0, 0, nil) }

func fingerprint(mode, uid, gid uint32, xs []xattr) string {
	h := sha256.New()
	for _, x := range xs {
		fmt.Fprintf(h, "%q=%q\n", x.name, x.value)
	}
	return fmt.Sprintf("%o %d %d %s", mode&0o7777, uid, gid, hex.EncodeToString(h.Sum(nil)[:8]))
}

// rootFingerprint reads the fingerprint of an open directory whose owners
// are shifted by the given bases.
func rootFingerprint(fd int, uidBase, gidBase uint32) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	xs, err := readXattrs(fd)
	if err != nil {
		return "", err
	}
	kept := xs[:0]
	for _, x := range xs {
		if !strings.HasPrefix(x.name, overlayXattrs) {
			kept = append(kept, x)
		}
	}
	return fingerprint(st.Mode, st.Uid-uidBase, st.Gid-gidBase, kept), nil
}

func (p *Pool) recordedRoot(id string) (string, error) {
	var buf [128]byte
	n, err := unix.Lgetxattr(p.layer(id), rootXattr, buf[:])
	if errors.Is(err, unix.ENODATA) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("overlay: layer %s: %w", id, err)
	}
	return string(buf[:n]), nil
}

// inheritRoot gives the root directory of an overlay the mode, owner, times
// and extended attributes that "/" had in the stack below the upper, since
// overlayfs shows those of the upper alone. It happens once per upper, when
// it is attached first, and goes through the overlay, which has read the
// upper's already.
func (p *Pool) inheritRoot(mnt *os.File, s Stack, uidBase, gidBase uint32) error {
	was, err := p.recordedRoot(s.Upper)
	if err != nil || was != "" {
		return err
	}
	from := p.Skeleton()
	if len(s.Layers) > 0 {
		from = p.LayerPath(s.Layers[0])
	}
	src, err := openDir(unix.AT_FDCWD, from)
	if err != nil {
		return fmt.Errorf("overlay: root of the stack: %w", err)
	}
	defer src.Close()
	dst, err := openDir(int(mnt.Fd()), ".")
	if err != nil {
		return fmt.Errorf("overlay: root of the overlay: %w", err)
	}
	defer dst.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &st); err != nil {
		return fmt.Errorf("overlay: root of the stack: %w", err)
	}
	want, err := rootFingerprint(int(src.Fd()), 0, 0)
	if err != nil {
		return fmt.Errorf("overlay: root of the stack: %w", err)
	}
	if want != freshRoot() {
		if err := copyRoot(int(dst.Fd()), int(src.Fd()), st, uidBase, gidBase); err != nil {
			return fmt.Errorf("overlay: root of the overlay: %w", err)
		}
	}
	if err := setTimes(int(dst.Fd()), "", st.Atim, st.Mtim); err != nil {
		return fmt.Errorf("overlay: root of the overlay: %w", err)
	}
	if err := unix.Lsetxattr(p.layer(s.Upper), rootXattr, []byte(want), 0); err != nil {
		return fmt.Errorf("overlay: layer %s: %w", s.Upper, err)
	}
	return nil
}

func copyRoot(dst, src int, st unix.Stat_t, uidBase, gidBase uint32) error {
	if err := unix.Fchown(dst, int(st.Uid+uidBase), int(st.Gid+gidBase)); err != nil {
		return err
	}
	xs, err := readXattrs(src)
	if err != nil {
		return err
	}
	for _, x := range xs {
		if strings.HasPrefix(x.name, overlayXattrs) {
			continue
		}
		if err := unix.Fsetxattr(dst, x.name, x.value, 0); err != nil {
			return fmt.Errorf("extended attribute %s: %w", x.name, err)
		}
	}
	return unix.Fchmod(dst, st.Mode&0o7777)
}
