package files

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const copyChunk = 128 << 10

// WriteOptions says how [Root.Write] makes a file. A nil pointer takes the value
// of the file that is replaced, else the default named.
type WriteOptions struct {
	Mode      *uint32 // 0 to 07777; default 0644
	UID, GID  *uint32 // inside; default 0
	Parents   bool    // make missing directories, 0755, with UID and GID
	Exclusive bool    // ErrExists when the name is taken
	MaxBytes  int64   // smaller limit than Limits.FileBytes; 0: none
	Sync      bool    // on disk when Write returns
}

// Write puts the bytes of src into the file that path names, all or nothing: a
// reader sees the old content or the new. A symlink at the end is followed
// inside the root. The file is a new one: other hard links keep the old content;
// user.* attributes are kept.
// Errors: ErrNotFound (no such directory), ErrIsDir, ErrNotRegular, ErrExists,
// ErrTooLarge, ErrNoSpace, ErrReadOnly, ErrOutside, ErrInvalid, ErrSource when
// src failed. After an error nothing has changed but directories made on the way.
func (r *Root) Write(ctx context.Context, path string, src io.Reader, o WriteOptions) (Info, error) {
	var info Info
	err := checkMode(o.Mode)
	if err == nil {
		err = r.change(value(o.UID, 0), value(o.GID, 0), func(a *actor) error {
			var err error
			info, err = a.write(ctx, path, src, o)
			return err
		})
	}
	return info, fail("write", path, err)
}

func (a *actor) write(ctx context.Context, path string, src io.Reader, o WriteOptions) (Info, error) {
	p, err := a.r.locate(path, !o.Exclusive)
	if errors.Is(err, unix.ENOENT) && o.Parents {
		dir, _ := split(path)
		if err := a.mkdirAll(dir, 0o755); err != nil {
			return Info{}, err
		}
		p, err = a.r.locate(path, !o.Exclusive)
	}
	if err != nil {
		return Info{}, err
	}
	defer p.close()
	if err := p.replaceable(o.Exclusive); err != nil {
		return Info{}, err
	}

	mode, uid, gid := uint32(0o644), uint32(0), uint32(0)
	if p.exists() {
		mode = uint32(p.st.Mode) & 0o7777
		uid, gid = inside(p.st.Uid, a.r.uid), inside(p.st.Gid, a.r.gid)
	}
	mode, uid, gid = value(o.Mode, mode), value(o.UID, uid), value(o.GID, gid)
	if err := a.be(uid, gid); err != nil {
		return Info{}, err
	}
	n, err := a.newFile(p.dir)
	if err != nil {
		return Info{}, err
	}
	defer n.discard()
	limit := a.r.limits.FileBytes
	if o.MaxBytes > 0 {
		limit = min(limit, o.MaxBytes)
	}
	if err := n.fill(ctx, src, limit); err != nil {
		return Info{}, err
	}
	if p.exists() {
		if err := copyXattrs(p.node, n.fd()); err != nil {
			return Info{}, err
		}
	}
	if err := n.own(a, uid, gid, mode); err != nil {
		return Info{}, err
	}
	if o.Sync {
		if err := n.f.Sync(); err != nil {
			return Info{}, err
		}
	}
	if err := n.install(p, o.Exclusive); err != nil {
		return Info{}, err
	}
	if o.Sync {
		if err := syncDir(p.dir); err != nil {
			return Info{}, err
		}
	}
	var st unix.Statx_t
	if err := statx(int(n.fd()), "", unix.AT_EMPTY_PATH, &st); err != nil {
		return Info{}, err
	}
	info := a.r.info(p.name, &st)
	info.Mount = false
	return info, nil
}

// replaceable refuses places that a file can't take.
func (p *place) replaceable(exclusive bool) error {
	switch {
	case !p.exists():
		return nil
	case exclusive:
		return unix.EEXIST
	case p.kind() == TypeDir:
		return unix.EISDIR
	case p.kind() != TypeFile && p.kind() != TypeSymlink:
		return because(ErrNotRegular, "a %s is not replaced by a file", p.kind())
	}
	return nil
}

// newFile is a file that has no name, or a temporary one, until install.
type newFile struct {
	f    *os.File
	dir  fd
	temp string // name in dir to remove; "" for none
}

// newFile makes an empty file in dir, mode 0600, owned by the actor. Where the
// file system can, it has no name, so that no crash and no checkpoint leaves
// half a file.
func (a *actor) newFile(dir fd) (*newFile, error) {
	n, err := unix.Openat(int(dir), ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return &newFile{f: os.NewFile(uintptr(n), "new"), dir: dir}, nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EINVAL) {
		return nil, err
	}
	name := tempName()
	n, err = unix.Openat(int(dir), name, unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	return &newFile{f: os.NewFile(uintptr(n), "new"), dir: dir, temp: name}, nil
}

func tempName() string { return ".cairn-" + rand.Text() }

func (n *newFile) fd() fd { return fd(n.f.Fd()) }

// discard closes the file; what was not installed is gone.
func (n *newFile) discard() {
	if n.temp != "" {
		_ = unix.Unlinkat(int(n.dir), n.temp, 0)
	}
	_ = n.f.Close()
}

// own gives the file its owner and mode. The owner only differs where the
// directory passes its group on.
func (n *newFile) own(a *actor, uid, gid, mode uint32) error {
	f := int(n.fd())
	var st unix.Statx_t
	if err := statx(f, "", unix.AT_EMPTY_PATH, &st); err != nil {
		return err
	}
	if st.Uid != a.r.uid+uid || st.Gid != a.r.gid+gid {
		if err := unix.Fchown(f, int(a.r.uid+uid), int(a.r.gid+gid)); err != nil {
			return err
		}
	}
	return unix.Fchmod(f, mode) // last: a change of owner clears set-id bits
}

// install gives the file its name.
func (n *newFile) install(p *place, exclusive bool) error {
	if n.temp == "" {
		if !p.exists() || exclusive {
			err := unix.Linkat(int(n.fd()), "", int(p.dir), p.name, unix.AT_EMPTY_PATH)
			if err == nil || exclusive || !errors.Is(err, unix.EEXIST) {
				return err
			}
		}
		temp := tempName()
		if err := unix.Linkat(int(n.fd()), "", int(p.dir), temp, unix.AT_EMPTY_PATH); err != nil {
			return err
		}
		n.temp = temp
	}
	if err := unix.Renameat2(int(n.dir), n.temp, int(p.dir), p.name, noReplace(exclusive)); err != nil {
		return err
	}
	n.temp = ""
	return nil
}

func noReplace(exclusive bool) uint {
	if exclusive {
		return unix.RENAME_NOREPLACE
	}
	return 0
}

// fill copies src into the file, limit bytes at most. Blocks of zeros become
// holes.
func (n *newFile) fill(ctx context.Context, src io.Reader, limit int64) error {
	var (
		buf  = make([]byte, copyChunk)
		size int64
	)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		// One byte more than allowed tells a file that is too large.
		got, rerr := readChunk(src, buf[:min(int64(len(buf)), limit-size+1)])
		if size+int64(got) > limit {
			return because(ErrTooLarge, "more than %d bytes", limit)
		}
		if err := writeSparse(n.f, buf[:got], size); err != nil {
			return err
		}
		size += int64(got)
		if rerr == io.EOF { //nolint:errorlint // as io.Reader promises; a wrapped one is a failure
			break
		}
		if rerr != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return &sourceError{rerr}
		}
	}
	return n.f.Truncate(size)
}

// readChunk is io.ReadFull that hands on the reader's error as it is: a request
// body that was cut off ends in io.ErrUnexpectedEOF too.
func readChunk(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

// sourceError marks an error of the caller's stream, so that an errno inside it is
// not taken for one of the sandbox's files.
type sourceError struct{ err error }

func (e *sourceError) Error() string   { return "source: " + e.err.Error() }
func (e *sourceError) Unwrap() []error { return []error{ErrSource, e.err} }

func value[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

func checkMode(m *uint32) error {
	if m != nil && *m > 0o7777 {
		return because(ErrInvalid, "mode %o is not within 0..07777", *m)
	}
	return nil
}

func syncDir(dir fd) error {
	f, err := openat2(int(dir), ".", unix.O_RDONLY|unix.O_DIRECTORY, beneath)
	if err != nil {
		return err
	}
	defer f.close()
	if err := unix.Fsync(int(f)); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}
