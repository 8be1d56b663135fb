package guest

import (
	"errors"
	"os"

	"cairn/sandbox/stem/wire"

	"golang.org/x/sys/unix"
)

// records is the directory /run/cairn/p: one directory per process id.
type records struct {
	dir   string
	spare string // see makeSpare
}

func newRecords(runDir string) records {
	return records{dir: runDir + "/" + wire.DirProcess, spare: runDir + "/" + wire.DirSpare}
}

func (r records) path(id, name string) string { return r.dir + "/" + id + "/" + name }

// writePID says that pid runs on behalf of id, and takes the room for its status.
func (r records) writePID(id string, rec wire.PIDRecord) error {
	var zeros [wire.MaxRecord]byte
	if err := write(r.path(id, wire.FileStatusNew), zeros[:]); err != nil {
		return err
	}
	tmp := r.path(id, wire.FilePIDNew)
	if err := write(tmp, rec.Append(nil)); err != nil {
		return err
	}
	return unix.Rename(tmp, r.path(id, wire.FilePID))
}

// writeStatus makes the status record appear.
func (r records) writeStatus(id string, s wire.Status) error {
	tmp := r.path(id, wire.FileStatusNew)
	if err := write(tmp, s.Append(nil)); err != nil {
		return err
	}
	return unix.Rename(tmp, r.path(id, wire.FileStatus))
}

func (r records) hasStatus(id string) bool {
	var st unix.Stat_t
	return unix.Lstat(r.path(id, wire.FileStatus), &st) == nil
}

// unfinished lists the processes with a pid record and no status.
func (r records) unfinished() map[string]wire.PIDRecord {
	found := map[string]wire.PIDRecord{}
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return found
	}
	for _, e := range entries {
		id := e.Name()
		if !wire.ValidID(id) || r.hasStatus(id) {
			continue
		}
		b, err := readSmall(r.path(id, wire.FilePID), wire.MaxRecord)
		if err != nil {
			continue
		}
		if rec, err := wire.ParsePID(b); err == nil {
			found[id] = rec
		}
	}
	return found
}

// write gives the file at path that content, in the room it has if it is a regular file.
func write(path string, content []byte) error {
	if overwrite(path, content) == nil {
		return nil
	}
	return writeNew(path, content)
}

// writeNew replaces whatever is at path by a regular file with that content.
func writeNew(path string, content []byte) error {
	if err := unix.Unlink(path); err != nil && err != unix.ENOENT {
		return err
	}
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return writeAll(fd, content)
}

// overwrite replaces the content of an existing regular file within the room it has.
func overwrite(path string, content []byte) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return unix.EINVAL
	}
	if err := writeAll(fd, content); err != nil {
		return err
	}
	if st.Size <= int64(len(content)) {
		return nil
	}
	return unix.Ftruncate(fd, int64(len(content)))
}

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func isRegular(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
}

var errTooLarge = errors.New("file is too large")

// readSmall reads a regular file of at most limit bytes. It never blocks on what is not one.
func readSmall(path string, limit int) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if !isRegular(fd) {
		return nil, unix.EINVAL
	}
	return readFD(fd, limit)
}

func readFD(fd, limit int) ([]byte, error) {
	buf := make([]byte, 0, 1024)
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := unix.Read(fd, buf[len(buf):cap(buf)])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return buf, nil
		}
		buf = buf[:len(buf)+n]
		if len(buf) > limit {
			return nil, errTooLarge
		}
	}
}
