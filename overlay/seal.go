package overlay

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Sealed is what is known of a layer whose content is on record.
type Sealed struct {
	Digest string // hex SHA-256 of the manifest
	Files  int64  // entries, the root included
	Bytes  int64  // of content, as file sizes add up
}

// Seal makes a layer durable: when it returns, the layer's files are on disk
// and so is its manifest, which has every file's SHA-256 and metadata. The
// layer must not be written to from now on. A layer that is sealed already
// gets a new manifest, equal if nothing changed.
func (p *Pool) Seal(ctx context.Context, id string) (Sealed, error) {
	d, err := p.openLayer(id)
	if err != nil {
		return Sealed{}, err
	}
	defer d.Close()
	fail := func(err error) (Sealed, error) {
		return Sealed{}, fmt.Errorf("overlay: seal %s: %w", id, err)
	}
	tmp := p.staging("manifest-" + id)
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	defer os.Remove(tmp)
	sum := sha256.New()
	w := bufio.NewWriterSize(io.MultiWriter(f, sum), 64<<10)
	s := Sealed{}
	if _, err := w.WriteString(manifestHeader + "\n"); err != nil {
		return fail(err)
	}
	var line []byte
	err = describe(ctx, d, func(r *record) error {
		s.Files++
		if r.same == "" {
			s.Bytes += r.size
		}
		line = r.append(line[:0])
		_, err := w.Write(line)
		return err
	})
	if err != nil {
		return fail(err)
	}
	if err := w.Flush(); err != nil {
		return fail(err)
	}
	// The files first: a manifest that is there vouches for them.
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fail(os.NewSyscallError("syncfs", err))
	}
	if err := f.Sync(); err != nil {
		return fail(err)
	}
	if err := os.Rename(tmp, p.layer(id, manifest)); err != nil {
		return fail(err)
	}
	if err := syncDir(p.layer(id)); err != nil {
		return fail(err)
	}
	if err := syncDir(p.path(layersDir)); err != nil {
		return fail(err)
	}
	s.Digest = hex.EncodeToString(sum.Sum(nil))
	return s, nil
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// describe makes the records of a layer, in the manifest's order.
func describe(ctx context.Context, root *os.File, each func(*record) error) error {
	groups := map[fileID]*record{}
	buf := make([]byte, 256<<10)
	return walk(ctx, root, func(dir *os.File, name, path string, st *unix.Stat_t) error {
		r := &record{
			path: path, mode: st.Mode, uid: st.Uid, gid: st.Gid,
			mtime: unix.Timespec{Sec: st.Mtim.Sec, Nsec: st.Mtim.Nsec},
		}
		if isWhiteout(st) {
			// Overlayfs shares one inode among whiteouts: their owner
			// and times say nothing.
			return each(&record{path: path, mode: unix.S_IFCHR})
		}
		// Links from other layers count too, so most such groups have
		// one member here.
		if st.Nlink > 1 && !isDir(st) {
			if first, ok := groups[idOf(st)]; ok {
				same := *first
				same.path, same.same = path, first.path
				return each(&same)
			}
			groups[idOf(st)] = r
		}
		if err := fill(r, dir, name, st, buf); err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
		return each(r)
	})
}

// fill reads what the record needs besides the status.
func fill(r *record, dir *os.File, name string, st *unix.Stat_t, buf []byte) error {
	xs, err := readXattrsAt(dir, name)
	if err != nil {
		return err
	}
	r.xattrs = visible(xs, true)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		f, err := openFile(int(dir.Fd()), name)
		if err != nil {
			return err
		}
		defer f.Close()
		h := sha256.New()
		if r.size, err = io.CopyBuffer(h, onlyReader{f}, buf); err != nil {
			return err
		}
		r.sum = h.Sum(nil)
	case unix.S_IFLNK:
		r.link, err = readlinkAt(int(dir.Fd()), name)
	case unix.S_IFCHR, unix.S_IFBLK:
		r.rdev = st.Rdev
	}
	return err
}

// onlyReader keeps io.CopyBuffer to the buffer that it is given.
type onlyReader struct{ io.Reader }

// Verify compares a layer with its manifest, and the manifest with digest.
// The error is a CorruptError if they differ: the first difference found.
func (p *Pool) Verify(ctx context.Context, id, digest string) error {
	d, err := p.openLayer(id)
	if err != nil {
		return err
	}
	defer d.Close()
	corrupt := func(path, what string) error { return &CorruptError{Layer: id, Path: path, What: what} }
	f, err := os.Open(p.layer(id, manifest))
	if errors.Is(err, os.ErrNotExist) {
		return corrupt("", "manifest is missing")
	}
	if err != nil {
		return fmt.Errorf("overlay: verify %s: %w", id, err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return fmt.Errorf("overlay: verify %s: %w", id, err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != digest {
		return corrupt("", "manifest has digest "+got+", expected "+digest)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("overlay: verify %s: %w", id, err)
	}
	var want []*record
	err = readManifest(f, func(r *record) error { want = append(want, r); return nil })
	if err != nil {
		return corrupt("", err.Error())
	}
	i := 0
	err = describe(ctx, d, func(r *record) error {
		if i == len(want) || pathBefore(r.path, want[i].path) {
			return corrupt(r.path, "is not in the manifest")
		}
		w := want[i]
		i++
		if r.path != w.path {
			return corrupt(w.path, "is missing")
		}
		if what := r.differs(w); what != "" {
			return corrupt(r.path, what)
		}
		return nil
	})
	if err != nil {
		if c := (*CorruptError)(nil); errors.As(err, &c) {
			return c
		}
		if errors.Is(err, unix.EIO) || errors.Is(err, unix.EUCLEAN) {
			return corrupt("", err.Error())
		}
		return fmt.Errorf("overlay: verify %s: %w", id, err)
	}
	if i < len(want) {
		return corrupt(want[i].path, "is missing")
	}
	return nil
}

// differs says what of r is not as in w.
func (r *record) differs(w *record) string {
	a, b := r.append(nil), w.append(nil)
	switch {
	case string(a) == string(b):
		return ""
	case r.mode&unix.S_IFMT != w.mode&unix.S_IFMT:
		return "has another type"
	case r.size != w.size || string(r.sum) != string(w.sum) || r.link != w.link || r.rdev != w.rdev:
		return "has other content"
	case r.mode != w.mode:
		return "has another mode"
	case r.uid != w.uid || r.gid != w.gid:
		return "has another owner"
	case r.mtime != w.mtime:
		return "has another time"
	case r.same != w.same:
		return "has other hard links"
	}
	return "has other extended attributes"
}
