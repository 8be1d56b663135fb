package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// File is a file of a generated layer.
type File struct {
	Path    string // relative, clean
	Content []byte
	Mode    uint32 // permission bits
}

// WriteIdentity makes the small layer id that gives a sandbox files of its
// own (host name, machine id) and directories to mount something at, on top
// of the stack below, top first. Directories on the way get the metadata that
// they have there. What has something other than a directory on the way, such
// as an image whose /etc is a symbolic link, is left out. Everything belongs
// to root.
func (p *Pool) WriteIdentity(ctx context.Context, id string, below []string, files []File, dirs []string) error {
	m, err := p.openStack(below)
	if err != nil {
		return err
	}
	defer m.close()
	return p.stage(id, func(dir string) error {
		out, err := openDir(unix.AT_FDCWD, filepath.Join(dir, filesDir))
		if err != nil {
			return err
		}
		defer out.Close()
		for _, f := range files {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			err := p.generate(m, out, f.Path, func(d *os.File, name string) error {
				return writeFileAt(d, name, f)
			})
			if err != nil {
				return fmt.Errorf("overlay: layer %s: %q: %w", id, f.Path, err)
			}
		}
		for _, path := range dirs {
			err := p.generate(m, out, strings.Trim(path, "/"), mkdirAt)
			if err != nil {
				return fmt.Errorf("overlay: layer %s: %q: %w", id, path, err)
			}
		}
		var st unix.Stat_t
		top := m.parts[0].dir
		if err := unix.Fstat(int(top.Fd()), &st); err != nil {
			return err
		}
		return copyMetadata(top, ".", out, ".", &st)
	})
}

// generate makes what is at a path, after the directories on the way.
func (p *Pool) generate(below *mergedDir, out *os.File, path string, last func(*os.File, string) error) error {
	if !goodPath(path) || path == "." {
		return fmt.Errorf("bad path: %w", unix.EINVAL)
	}
	at, err := openDir(int(out.Fd()), ".")
	if err != nil {
		return err
	}
	m := below
	defer func() {
		at.Close()
		if m != nil && m != below {
			m.close()
		}
	}()
	elems := strings.Split(path, "/")
	for i, name := range elems {
		var e *mergedEntry
		if m != nil {
			if e, _, err = m.lookup(name); err != nil {
				return err
			}
		}
		final := i == len(elems)-1
		if e != nil && !isDir(&e.st) && (!final || !isFile(&e.st)) {
			return nil
		}
		if final {
			if e != nil && isDir(&e.st) {
				return nil
			}
			return last(at, name)
		}
		next, err := makeDir(at, name, e)
		if err != nil {
			return err
		}
		at.Close()
		at = next
		var sub *mergedDir
		if e != nil {
			if sub, err = e.open(name); err != nil {
				return err
			}
		}
		if m != nil && m != below {
			m.close()
		}
		m = sub
	}
	return nil
}

// makeDir makes a directory like e unless it is there, and opens it. That
// filling it changes its times doesn't matter: they are set at each entry.
func makeDir(at *os.File, name string, e *mergedEntry) (*os.File, error) {
	err := unix.Mkdirat(int(at.Fd()), name, 0o755)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	if err == nil && e != nil {
		if err := copyMetadata(e.part.dir, name, at, name, &e.st); err != nil {
			return nil, err
		}
		// The layer has a few of the directory's entries, not all.
		if err := unix.Lremovexattr(fdPath(at)+"/"+name, opaqueXattr); err != nil && !errors.Is(err, unix.ENODATA) {
			return nil, err
		}
	}
	return openDir(int(at.Fd()), name)
}

func mkdirAt(d *os.File, name string) error {
	if err := unix.Mkdirat(int(d.Fd()), name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return unix.Fchmodat(int(d.Fd()), name, 0o755, 0)
}

func writeFileAt(d *os.File, name string, f File) error {
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	out := os.NewFile(uintptr(fd), name)
	defer out.Close()
	if _, err := out.Write(f.Content); err != nil {
		return err
	}
	return unix.Fchmod(fd, f.Mode&0o7777)
}
