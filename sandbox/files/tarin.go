package files

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"math"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// TarInOptions says how [Root.TarIn] unpacks.
type TarInOptions struct {
	// UID and GID, inside, own everything when given, instead of the archive's
	// owners.
	UID, GID *uint32
	// Parents makes the target and missing parents of it, 0755.
	Parents bool
	// MaxBytes and MaxEntries are smaller limits than those of Limits; 0: none.
	MaxBytes   int64
	MaxEntries int
}

// TarIn unpacks the tar archive src (not compressed) into the directory path.
//
// Files, links and FIFOs replace what has their name, one by one and each of them
// atomically; directories are merged and get the archive's owner and mode, but
// for the target itself if it was there before. Symlinks are data: none is
// followed below the target.
//
// The archive is checked while it is unpacked. At the first entry that is not
// allowed, unpacking stops with an error that has the entry's name as its Path;
// TarStats then says how many entries before it have been unpacked, and they stay.
//
// Errors: ErrBadArchive (damaged; absolute names or "..", the same in hard links;
// devices), ErrSymlink or ErrNotDir (a name below something that is no
// directory), ErrIsDir, ErrTooLarge, ErrInvalid (owner or mode out of range),
// ErrNoSpace, ErrReadOnly, ErrSource when src failed.
func (r *Root) TarIn(ctx context.Context, path string, src io.Reader, o TarInOptions) (TarStats, error) {
	t := &tarReader{r: r, ctx: ctx, o: o, bytes: r.limits.TarBytes, entries: r.limits.TarEntries, parent: -1}
	if o.MaxBytes > 0 {
		t.bytes = min(t.bytes, o.MaxBytes)
	}
	if o.MaxEntries > 0 {
		t.entries = min(t.entries, o.MaxEntries)
	}
	err := errors.Join(ctx.Err(), checkPath(path))
	if err == nil {
		err = r.change(value(o.UID, 0), value(o.GID, 0), func(a *actor) error {
			t.a = a
			return t.run(path, src)
		})
	}
	return t.stats, fail("tar in", path, err)
}

// rawPerEntry is how much an archive may hold beside the content of its files,
// per entry allowed: headers, padding, extended headers.
const rawPerEntry = 4 << 10

type tarReader struct {
	r       *Root
	a       *actor
	ctx     context.Context //nolint:containedctx // lives as long as one call
	o       TarInOptions
	bytes   int64 // left
	entries int   // left
	top     fd    // the target
	made    bool  // by us
	stats   TarStats

	parent     fd // directory of the latest entry, or -1
	parentName string
	pending    []dirTime // directories whose time is set when they are complete
}

type dirTime struct {
	name string
	time time.Time
}

func (t *tarReader) run(path string, src io.Reader) error {
	var err error
	t.top, err = t.r.openDir(path)
	if errors.Is(err, unix.ENOENT) && t.o.Parents {
		if err := t.a.mkdirAll(path, 0o755); err != nil {
			return err
		}
		t.made = true
		t.top, err = t.r.openDir(path)
	}
	if err != nil {
		return err
	}
	defer t.top.close()
	defer func() { t.parent.close() }()

	raw := t.bytes + int64(t.entries)*rawPerEntry + 1<<20
	if raw < t.bytes { // overflow: no limit was wanted
		raw = math.MaxInt64
	}
	tr := tar.NewReader(&sourceReader{ctx: t.ctx, r: src, left: raw})
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return t.settle("")
		}
		if err != nil {
			return archiveError(err)
		}
		if err := t.entry(h, tr); err != nil {
			return fail("tar in", h.Name, err)
		}
		t.stats.Entries++
	}
}

// sourceReader marks the errors of the caller's reader and bounds it.
type sourceReader struct {
	ctx  context.Context //nolint:containedctx // lives as long as one call
	r    io.Reader
	left int64
}

func (s *sourceReader) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	if s.left <= 0 {
		return 0, because(ErrTooLarge, "the archive is larger than its entries may be")
	}
	n, err := s.r.Read(p[:min(int64(len(p)), s.left)])
	s.left -= int64(n)
	if err != nil && err != io.EOF { // a wrapped EOF is a failure
		if s.ctx.Err() != nil {
			return n, s.ctx.Err()
		}
		err = &sourceError{err}
	}
	return n, err
}

// archiveError tells the parser's errors from those that came through it.
func archiveError(err error) error {
	if codeOf(err) != ErrInternal {
		return err
	}
	return because(ErrBadArchive, "%w", err)
}

func (t *tarReader) entry(h *tar.Header, content io.Reader) error {
	if t.entries == 0 {
		return because(ErrTooLarge, "too many entries")
	}
	t.entries--
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeReg, tar.TypeRegA, tar.TypeGNUSparse, tar.TypeCont, //nolint:staticcheck // old archives have TypeRegA
		tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeFifo:
	case tar.TypeChar, tar.TypeBlock:
		return because(ErrBadArchive, "devices are not unpacked")
	default:
		return because(ErrBadArchive, "unknown type of entry %q", h.Typeflag)
	}
	name, err := t.clean(h.Name)
	if err != nil {
		return err
	}
	uid, gid, err := t.owner(h)
	if err != nil {
		return err
	}
	if h.Mode < 0 || h.Mode&^0o177777 != 0 { // some writers put the type in, too
		return because(ErrInvalid, "mode %o", h.Mode)
	}
	if err := t.settle(name); err != nil {
		return err
	}
	if name == "" {
		return t.topEntry(h, uid, gid)
	}
	dirName, base := "", name
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		dirName, base = name[:i], name[i+1:]
	}
	dir, err := t.dirOf(dirName)
	if err != nil {
		return err
	}
	p := &place{dir: dir, name: base, node: -1}
	defer func() { p.node.close() }()
	if err := p.look(); err != nil {
		return err
	}
	if err := t.a.be(uid, gid); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		if err := t.dir(p, h, uid, gid); err != nil {
			return err
		}
		t.pending = append(t.pending, dirTime{name, h.ModTime})
		return nil
	}
	if p.exists() && p.kind() == TypeDir {
		return unix.EISDIR
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		return t.symlink(p, h, gid)
	case tar.TypeLink:
		return t.link(p, h)
	case tar.TypeFifo:
		return t.fifo(p, h, uid, gid)
	default:
		return t.file(p, h, uid, gid, content)
	}
}

// clean checks a name of the archive and returns it without "./" and the like;
// "" is the target itself.
func (t *tarReader) clean(name string) (string, error) {
	switch {
	case len(name) > pathMax:
		return "", because(ErrBadArchive, "name of %d bytes, at most %d", len(name), pathMax)
	case strings.HasPrefix(name, "/"):
		return "", because(ErrBadArchive, "absolute name")
	case strings.IndexByte(name, 0) >= 0:
		return "", because(ErrBadArchive, "NUL byte in name")
	}
	parts := make([]string, 0, 8)
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
		case part == "..":
			return "", because(ErrBadArchive, `".." in name`)
		case len(part) > nameMax:
			return "", because(ErrBadArchive, "name of %d bytes, at most %d", len(part), nameMax)
		default:
			parts = append(parts, part)
		}
	}
	if len(parts) > t.r.limits.Depth {
		return "", because(ErrTooLarge, "more than %d directories below each other", t.r.limits.Depth)
	}
	return strings.Join(parts, "/"), nil
}

func (t *tarReader) owner(h *tar.Header) (uid, gid uint32, err error) {
	u, g := int64(h.Uid), int64(h.Gid)
	if t.o.UID != nil {
		u = int64(*t.o.UID)
	}
	if t.o.GID != nil {
		g = int64(*t.o.GID)
	}
	if u < 0 || u >= IDs || g < 0 || g >= IDs {
		return 0, 0, because(ErrInvalid, "owner %d:%d is not within 0..%d", u, g, IDs-1)
	}
	return uint32(u), uint32(g), nil
}

// dirOf opens a directory below the target, through directories only. Archives
// without entries for their directories are common: missing ones are made.
func (t *tarReader) dirOf(name string) (fd, error) {
	if name == "" {
		return t.top, nil
	}
	if t.parent >= 0 && t.parentName == name {
		return t.parent, nil
	}
	f, err := openat2(int(t.top), name, unix.O_PATH|unix.O_DIRECTORY, beneath)
	if errors.Is(err, unix.ENOENT) {
		f, err = t.makeDirs(name)
	}
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return -1, because(ErrSymlink, "%q is or leads through a symlink or a file (%w)", name, err)
	}
	if err != nil {
		return -1, err
	}
	t.parent.close()
	t.parent, t.parentName = f, name
	return f, nil
}

func (t *tarReader) makeDirs(name string) (fd, error) {
	if err := t.a.be(value(t.o.UID, 0), value(t.o.GID, 0)); err != nil {
		return -1, err
	}
	dir, err := openat2(int(t.top), ".", unix.O_PATH|unix.O_DIRECTORY, beneath)
	if err != nil {
		return -1, err
	}
	for part := range strings.SplitSeq(name, "/") {
		err := t.a.mkdir(dir, part, 0o755)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			dir.close()
			return -1, err
		}
		next, err := child(dir, part, unix.O_PATH|unix.O_DIRECTORY)
		dir.close()
		if err != nil {
			return -1, err
		}
		dir = next
	}
	return dir, nil
}

// settle sets the times of the directories that are complete, now that the entry
// name comes: those that name is not below. Archives that come back to a
// directory later on change its time.
func (t *tarReader) settle(name string) error {
	for n := len(t.pending); n > 0; n-- {
		d := t.pending[n-1]
		if name != "" && strings.HasPrefix(name, d.name+"/") || name != "" && d.name == "" {
			return nil
		}
		t.pending = t.pending[:n-1]
		f, err := openat2(int(t.top), "./"+d.name, unix.O_PATH|unix.O_DIRECTORY, beneath)
		if err == nil {
			err = setTime(f, "", d.time, unix.AT_EMPTY_PATH)
			f.close()
		}
		// The sandbox may have removed it meanwhile.
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
			return fail("tar in", d.name, err)
		}
	}
	return nil
}
