package guest

import (
	"os"

	"cairn/sandbox/stem/wire"

	"golang.org/x/sys/unix"
)

// keepSpare makes the directory of the next process while nobody waits for it: making
// five inodes can take milliseconds.
func (s *stem) keepSpare() {
	for {
		// Without room on the disk there is none, and the next start says so.
		_ = s.records.makeSpare()
		<-s.idle
	}
}

// makeSpare makes a directory with the empty files that every process needs, unless there
// is one. It opens nothing: the stem may be dumped meanwhile.
func (r records) makeSpare() error {
	var st unix.Stat_t
	if unix.Lstat(r.spare, &st) == nil {
		return nil
	}
	if err := mkdir(r.dir); err != nil && err != unix.EEXIST {
		return err
	}
	tmp := r.spare + ".new"
	err := mkdir(tmp)
	if err == unix.EEXIST {
		// A former stem's.
		if err := os.RemoveAll(tmp); err != nil {
			return err
		}
		err = mkdir(tmp)
	}
	if err != nil {
		return err
	}
	for _, name := range []string{wire.FileStdout, wire.FileStderr, wire.FileStatusNew, wire.FilePIDNew} {
		if err := unix.Mknod(tmp+"/"+name, unix.S_IFREG|0o600, 0); err != nil {
			return err
		}
	}
	return unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, r.spare, unix.RENAME_NOREPLACE)
}

func mkdir(path string) error { return unix.Mkdir(path, 0o700) }

// makeDir makes the directory of a process, out of the spare one if there is one. It is not
// fresh when it was there already: the host makes it to put the input there.
func (r records) makeDir(id string) (fresh bool, err error) {
	path := r.dir + "/" + id
	err = unix.Renameat2(unix.AT_FDCWD, r.spare, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	if err == nil {
		return true, nil
	}
	err = mkdir(path)
	if err == unix.ENOENT {
		if err = mkdir(r.dir); err == nil || err == unix.EEXIST {
			err = mkdir(path)
		}
	}
	switch err {
	case nil:
		return true, nil
	case unix.EEXIST:
		return false, nil
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EACCES, unix.EPERM, unix.EROFS:
		return false, failure{wire.CodeTampered, err.Error()}
	}
	return false, err
}

// makeOutput makes an output file in a process's directory; in a fresh one it may be there
// already. It is a regular file: the stem itself writes to it. EEXIST: it has been used.
func (r records) makeOutput(id, name string, fresh bool) (int, error) {
	const flags = unix.O_WRONLY | unix.O_APPEND | unix.O_NOFOLLOW | unix.O_CLOEXEC
	path := r.path(id, name)
	if fresh {
		fd, err := unix.Open(path, flags|unix.O_NONBLOCK, 0)
		if err == nil && isRegular(fd) {
			return fd, unix.SetNonblock(fd, false)
		}
		if err == nil {
			unix.Close(fd)
		}
	}
	return unix.Open(path, flags|unix.O_CREAT|unix.O_EXCL, 0o600)
}
