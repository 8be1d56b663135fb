package criu

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// shmSaver writes the index and the data. Both are made when there is something to write.
type shmSaver struct {
	ctx    context.Context
	owners owners
	images *os.File
	seen   map[uint64][]byte // names of files with several, by inode number
	stats  ShmStats

	index *bufio.Writer
	files []*os.File // the index and the data
}

func (s *shmSaver) save(dir *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return err
	}
	names, err := dir.Readdirnames(1)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	const usual = unix.S_IFDIR | unix.S_ISVTX | 0o777
	if len(names) == 0 && st.Mode == usual && st.Uid == s.owners.uid.base && st.Gid == s.owners.gid.base {
		return nil
	}
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := s.begin(shmIndex, shmData); err != nil {
		return err
	}
	if err := s.entry(dir, ".", st, 0); err != nil {
		return err
	}
	return s.index.Flush()
}

// begin makes the two files.
func (s *shmSaver) begin(names ...string) error {
	for _, name := range names {
		fd, err := unix.Openat(int(s.images.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
		s.files = append(s.files, os.NewFile(uintptr(fd), name))
	}
	s.index = bufio.NewWriter(s.files[0])
	return nil
}

// line adds a line to the index.
func (s *shmSaver) line(entry any) error {
	text, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	_, err = s.index.Write(append(text, '\n'))
	return err
}

func (s *shmSaver) close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// below saves what is in a directory.
func (s *shmSaver) below(dir *os.File, name string, depth int) error {
	if depth > mostShmDepth {
		return tooMuch("directories are too deep in each other")
	}
	for {
		names, err := dir.Readdirnames(256)
		for _, n := range names {
			if err := s.named(dir, n, strings.TrimPrefix(name+"/"+n, "./"), depth); err != nil {
				return fmt.Errorf("%q: %w", n, err)
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

func tooMuch(message string) error {
	return &Error{Code: CodeUnsupported, Resource: "/dev/shm", Message: message}
}

// named saves one file of a directory.
func (s *shmSaver) named(dir *os.File, base, name string, depth int) error {
	if err := context.Cause(s.ctx); err != nil {
		return err
	}
	// Looked at before it is opened: FIFOs and sockets are not.
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	flags := unix.O_PATH
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		flags = unix.O_RDONLY | unix.O_NONBLOCK
	case unix.S_IFDIR:
		flags = unix.O_RDONLY | unix.O_DIRECTORY
	case unix.S_IFBLK, unix.S_IFCHR:
		return tooMuch("a device there can't be saved")
	}
	fd, err := unix.Openat2(int(dir.Fd()), base, &unix.OpenHow{
		Flags: uint64(flags | unix.O_NOFOLLOW | unix.O_CLOEXEC), Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_BENEATH,
	})
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	return s.entry(f, name, st, depth)
}

func (s *shmSaver) entry(f *os.File, name string, st unix.Stat_t, depth int) (err error) {
	if s.stats.Files++; s.stats.Files > mostShmEntries {
		return tooMuch(fmt.Sprintf("there are more than %d files", mostShmEntries))
	}
	e := shmEntry{Name: []byte(name), Mode: st.Mode, MTime: st.Mtim.Nano()}
	kind := st.Mode & unix.S_IFMT
	if e.UID, err = s.owners.uid.inside(st.Uid); err != nil {
		return err
	}
	if e.GID, err = s.owners.gid.inside(st.Gid); err != nil {
		return err
	}
	if kind != unix.S_IFDIR && st.Nlink > 1 {
		if e.Link = s.seen[st.Ino]; e.Link == nil {
			s.seen[st.Ino] = e.Name
		}
	}
	if e.Link == nil {
		switch kind {
		case unix.S_IFREG:
			e.Size = st.Size
			if e.Data, err = s.data(f, st.Size); err != nil {
				return err
			}
			e.Attrs, err = attrsOf(f)
		case unix.S_IFDIR:
			e.Attrs, err = attrsOf(f)
		case unix.S_IFLNK:
			buf := make([]byte, unix.PathMax)
			var n int
			if n, err = unix.Readlinkat(int(f.Fd()), "", buf); err == nil {
				e.Target = buf[:n]
			}
		}
		if err != nil {
			return err
		}
	}
	if err := s.line(e); err != nil {
		return err
	}
	if kind == unix.S_IFDIR {
		return s.below(f, name, depth+1)
	}
	return nil
}

// data appends what a file holds to the data, but for its holes.
func (s *shmSaver) data(f *os.File, size int64) ([]extent, error) {
	var list []extent
	for at := int64(0); at < size; {
		from, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return nil, err
		}
		to, err := unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		to = min(to, size)
		n, err := io.CopyBuffer(struct{ io.Writer }{s.files[1]}, io.NewSectionReader(f, from, to-from), make([]byte, 1<<20))
		if err != nil {
			return nil, err
		}
		if n != to-from {
			return nil, io.ErrUnexpectedEOF
		}
		list = append(list, extent{At: from, Len: n})
		s.stats.Bytes += n
		at = to
		if err := context.Cause(s.ctx); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// attrsOf reads the attributes that anybody may set. Others mean nothing on a file system
// from which nothing is run.
func attrsOf(f *os.File) (map[string][]byte, error) {
	const most = 1 << 16
	path := "/proc/self/fd/" + strconv.Itoa(int(f.Fd()))
	n, err := unix.Listxattr(path, nil)
	if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return nil, nil
	}
	buf := make([]byte, most)
	if err == nil {
		n, err = unix.Listxattr(path, buf)
	}
	if err != nil {
		return nil, fmt.Errorf("list attributes: %w", err)
	}
	all := map[string][]byte{}
	for name := range bytes.SplitSeq(buf[:n], []byte{0}) {
		if !bytes.HasPrefix(name, []byte("user.")) {
			continue
		}
		value := make([]byte, most)
		k, err := unix.Getxattr(path, string(name), value)
		if err != nil {
			return nil, fmt.Errorf("read an attribute: %w", err)
		}
		all[string(name)] = value[:k]
	}
	return all, nil
}
