package files

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// TarStats counts what TarOut wrote or TarIn unpacked.
type TarStats struct {
	Entries int
	Bytes   int64 // content of regular files; holes don't count in TarOut
	// Skipped counts what an archive can't or must not hold. TarOut: sockets,
	// devices, what other file systems are mounted on, and attributes that the
	// format can't express. TarIn: attributes other than user.*.
	Skipped int
}

// TarOut writes what path names (a symlink at the end is followed) to w as a PAX
// archive: for a directory "./" and everything below it, else one entry with the
// file's name. Owners are those inside; hard links, user.* attributes and holes
// are kept. Symlinks are archived, not followed; FIFOs are archived, not opened.
// A file that shrinks meanwhile is filled up with zeros; one that grows is cut.
// Entries of a directory are sorted within runs of 1024.
// Errors: ErrNotFound, ErrNotRegular, ErrOutside, ErrTooLarge beyond Limits (the
// archive then is incomplete), ErrSource when w fails.
func (r *Root) TarOut(ctx context.Context, path string, w io.Writer) (TarStats, error) {
	t := &tarWriter{r: r, ctx: ctx, links: make(map[inode]string), out: &sinkWriter{w: w}}
	t.tw = tar.NewWriter(t.out)
	err := t.top(path)
	if err == nil {
		err = t.tw.Close()
	}
	return t.stats, fail("tar out", path, err)
}

// sinkWriter marks the errors of the caller's writer.
type sinkWriter struct{ w io.Writer }

func (s *sinkWriter) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	if err != nil {
		err = &sourceError{err}
	}
	return n, err
}

type inode struct {
	major, minor uint32
	ino          uint64
}

type tarWriter struct {
	r     *Root
	ctx   context.Context //nolint:containedctx // lives as long as one call
	out   io.Writer
	tw    *tar.Writer
	links map[inode]string // first name of each file with several
	stats TarStats

	linkBytes int // held by links
}

func (t *tarWriter) top(path string) error {
	f, err := t.r.open(path, unix.O_PATH)
	if err != nil {
		return err
	}
	defer f.close()
	var st unix.Statx_t
	if err := statx(int(f), "", unix.AT_EMPTY_PATH, &st); err != nil {
		return err
	}
	switch kind := typeOf(st.Mode); kind {
	case TypeDir:
		return t.dir(f, &st, "", t.r.limits.Depth)
	case TypeFile:
		_, name := split(trimSlashes(path))
		return t.node(f, &st, name)
	default:
		return because(ErrNotRegular, "a %s is not archived by itself", kind)
	}
}

// dir archives the directory f under name, which is "" for the top.
func (t *tarWriter) dir(f fd, st *unix.Statx_t, name string, depth int) error {
	if depth == 0 {
		return because(ErrTooLarge, "more than %d directories below each other", t.r.limits.Depth)
	}
	h, err := t.header(f, st, name)
	if err != nil {
		return err
	}
	h.Typeflag, h.Name = tar.TypeDir, "./"
	if name != "" {
		h.Name = name + "/"
		name = h.Name
	}
	if err := t.put(h); err != nil {
		return err
	}
	n, err := openat2(int(f), ".", unix.O_RDONLY|unix.O_DIRECTORY, beneath)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(n), "dir")
	defer func() { _ = dir.Close() }()
	for {
		names, err := dir.Readdirnames(dirChunk)
		slices.Sort(names)
		for _, c := range names {
			if err := t.entry(n, c, name+c, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (t *tarWriter) entry(dir fd, name, full string, depth int) error {
	if err := t.ctx.Err(); err != nil {
		return err
	}
	f, err := child(dir, name, unix.O_PATH)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil // gone since
	case errors.Is(err, ErrOutside):
		t.stats.Skipped++
		return nil
	case err != nil:
		return fail("tar out", full, err)
	}
	defer f.close()
	var st unix.Statx_t
	if err := statx(int(f), "", unix.AT_EMPTY_PATH, &st); err != nil {
		return fail("tar out", full, err)
	}
	if typeOf(st.Mode) == TypeDir {
		return fail("tar out", full, t.dir(f, &st, full, depth-1))
	}
	return fail("tar out", full, t.node(f, &st, full))
}

// node archives anything but a directory.
func (t *tarWriter) node(f fd, st *unix.Statx_t, name string) error {
	h, err := t.header(f, st, name)
	if err != nil {
		return err
	}
	if st.Nlink > 1 {
		id := inode{st.Dev_major, st.Dev_minor, st.Ino}
		if first, ok := t.links[id]; ok {
			h.Typeflag, h.Linkname, h.PAXRecords = tar.TypeLink, first, nil
			return t.put(h)
		}
		k := typeOf(st.Mode)
		if (k == TypeFile || k == TypeFIFO) && t.linkBytes+len(name) <= maxLinkBytes {
			t.links[id] = name
			t.linkBytes += len(name)
		}
	}
	switch typeOf(st.Mode) {
	case TypeFile:
		return t.file(f, h)
	case TypeSymlink:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = readlink(f); err != nil {
			return err
		}
		return t.put(h)
	case TypeFIFO:
		h.Typeflag = tar.TypeFifo
		return t.put(h)
	default:
		t.stats.Skipped++
		return nil
	}
}

func (t *tarWriter) header(f fd, st *unix.Statx_t, name string) (*tar.Header, error) {
	h := &tar.Header{
		Name:    name,
		Mode:    int64(st.Mode & 0o7777),
		Uid:     int(inside(st.Uid, t.r.uid)),
		Gid:     int(inside(st.Gid, t.r.gid)),
		ModTime: tarTime(st),
		Format:  tar.FormatPAX,
	}
	if k := typeOf(st.Mode); k != TypeFile && k != TypeDir {
		return h, nil
	}
	m, err := xattrs(f)
	if err != nil {
		return nil, err
	}
	size := 0
	for k, v := range m {
		// The format has no way to write "=", and readers bound a header's size.
		if size += len(k) + len(v); strings.Contains(k, "=") || size > maxXattrs {
			t.stats.Skipped++
			continue
		}
		if h.PAXRecords == nil {
			h.PAXRecords = make(map[string]string)
		}
		h.PAXRecords[xattrRecord+k] = v
	}
	return h, nil
}

const (
	maxXattrs = 512 << 10 // bytes of attributes of one file
	// maxLinkBytes bounds the names remembered for hard links. Beyond it a hard link
	// is archived as a file of its own.
	maxLinkBytes = 64 << 20
)

// xattrRecord prefixes an attribute's name in a PAX record, as star, GNU tar and
// libarchive write it.
const xattrRecord = "SCHILY.xattr."

// tarTime is the time of the last change of content; the sandbox may have set
// one that the format can't express.
func tarTime(st *unix.Statx_t) time.Time {
	t := modTime(st)
	if t.Year() < 1 || t.Year() > 9999 {
		return time.Unix(0, 0)
	}
	return t
}

// put writes a header that no content follows.
func (t *tarWriter) put(h *tar.Header) error {
	if err := t.count(); err != nil {
		return err
	}
	return t.tw.WriteHeader(h)
}

func (t *tarWriter) count() error {
	if t.stats.Entries >= t.r.limits.TarEntries {
		return because(ErrTooLarge, "more than %d entries", t.r.limits.TarEntries)
	}
	t.stats.Entries++
	return nil
}

// file archives a regular file; h has everything but the size.
func (t *tarWriter) file(node fd, h *tar.Header) error {
	f, err := t.r.reopen(node, h.Name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	h.Typeflag, h.Size = tar.TypeReg, f.Size()
	data, sparse := extents(f.f, f.Size())
	stored := f.Size()
	if sparse {
		stored = 0
		for _, e := range data {
			stored += e.length
		}
	}
	if stored > t.r.limits.TarBytes-t.stats.Bytes {
		return because(ErrTooLarge, "more than %d bytes of files", t.r.limits.TarBytes)
	}
	if err := t.count(); err != nil {
		return err
	}
	t.stats.Bytes += stored
	if sparse {
		return t.sparse(f, h, data)
	}
	if err := t.tw.WriteHeader(h); err != nil {
		return err
	}
	return t.content(t.tw, f, extent{0, h.Size})
}

// content copies one extent of f, in zeros where f has become shorter.
func (t *tarWriter) content(w io.Writer, f *File, e extent) error {
	var (
		src = io.NewSectionReader(f.f, e.offset, e.length)
		buf = make([]byte, min(copyChunk, e.length))
	)
	for left := e.length; left > 0; {
		if err := t.ctx.Err(); err != nil {
			return err
		}
		want := buf[:min(int64(len(buf)), left)]
		n, err := io.ReadFull(src, want)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			clear(want[n:])
		} else if err != nil {
			return err
		}
		if _, err := w.Write(want); err != nil {
			return err
		}
		left -= int64(len(want))
	}
	return nil
}
