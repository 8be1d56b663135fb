package files

import (
	"errors"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	pathMax = 4095 // bytes, PATH_MAX without the NUL
	nameMax = 255  // bytes
	// A path with ".." fails with EAGAIN when anything was renamed meanwhile; a
	// sandbox that renames without end must not keep us here.
	resolveTries = 64
	maxSymlinks  = 40 // as the kernel's limit
)

// inRoot resolves like chroot does; beneath resolves names of one directory, or
// paths of real directories below it.
const (
	inRoot  = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV
	beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV
)

// fd is a descriptor owned by the function that opened it.
type fd int

func (f fd) close() {
	if f >= 0 {
		_ = unix.Close(int(f))
	}
}

func openat2(dir int, path string, flags, resolve uint64) (fd, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: resolve}
	for try := 0; ; try++ {
		n, err := unix.Openat2(dir, path, &how)
		switch {
		case err == nil:
			return fd(n), nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN) && try < resolveTries:
		case errors.Is(err, unix.EXDEV):
			return -1, because(ErrOutside, "not on the sandbox's own file system (%w)", err)
		default:
			return -1, err
		}
	}
}

// checkPath refuses what no file system could resolve.
func checkPath(path string) error {
	switch {
	case path == "":
		return because(ErrBadPath, "empty path")
	case len(path) > pathMax:
		return because(ErrBadPath, "path of %d bytes, at most %d", len(path), pathMax)
	case strings.IndexByte(path, 0) >= 0:
		return because(ErrBadPath, "NUL byte in path")
	}
	return nil
}

// open opens path below the root. flags decides whether a symlink at the end is
// followed.
func (r *Root) open(path string, flags uint64) (fd, error) {
	if err := checkPath(path); err != nil {
		return -1, err
	}
	f, err := openat2(int(r.dir.Fd()), path, flags, inRoot)
	runtime.KeepAlive(r)
	return f, err
}

func (r *Root) openDir(path string) (fd, error) {
	return r.open(path, unix.O_PATH|unix.O_DIRECTORY)
}

// child opens one name of dir, without following it and without leaving the mount.
func child(dir fd, name string, flags uint64) (fd, error) {
	return openat2(int(dir), name, flags|unix.O_NOFOLLOW, beneath)
}

// split cuts path into the directory and the last name, at its text: the kernel
// resolves the directory part. name is "" when the path ends in "/", "." or "..",
// or is the root.
func split(path string) (dir, name string) {
	i := strings.LastIndexByte(path, '/')
	dir, name = path[:i+1], path[i+1:]
	if name == "." || name == ".." {
		return path, ""
	}
	if dir == "" {
		dir = "/"
	}
	return dir, name
}

// trimSlashes removes slashes at the end, except from "/".
func trimSlashes(path string) string {
	for len(path) > 1 && path[len(path)-1] == '/' {
		path = path[:len(path)-1]
	}
	return path
}

// place is a name in an open directory, and what stands there now.
type place struct {
	dir  fd
	name string
	node fd // O_PATH descriptor of what has the name, or -1
	st   unix.Statx_t
}

func (p *place) close() {
	p.node.close()
	p.dir.close()
}

func (p *place) exists() bool { return p.node >= 0 }
func (p *place) kind() Type   { return typeOf(p.st.Mode) }

// locate finds the directory and name that path stands for. With follow, a
// symlink at the end is followed, also to a name that does not exist yet. It
// fails with ErrOutside where something is mounted on the name.
func (r *Root) locate(path string, follow bool) (*place, error) {
	for range maxSymlinks {
		if err := checkPath(path); err != nil {
			return nil, err
		}
		dirPath, name := split(path)
		if name == "" && follow {
			return nil, unix.EISDIR
		}
		if name == "" {
			return nil, because(ErrBadPath, "the path names no entry of a directory")
		}
		p := &place{name: name, node: -1}
		var err error
		if p.dir, err = r.openDir(dirPath); err != nil {
			return nil, err
		}
		if err := p.look(); err != nil {
			p.close()
			return nil, err
		}
		if !follow || !p.exists() || p.kind() != TypeSymlink {
			return p, nil
		}
		target, err := readlink(p.node)
		p.close()
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(target, "/") {
			path = target
		} else {
			path = dirPath + "/" + target
		}
	}
	return nil, unix.ELOOP
}

// look fills in what has the place's name at this moment.
func (p *place) look() error {
	if len(p.name) > nameMax {
		return because(ErrBadPath, "name of %d bytes, at most %d", len(p.name), nameMax)
	}
	node, err := child(p.dir, p.name, unix.O_PATH)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	p.node = node
	return statx(int(node), "", unix.AT_EMPTY_PATH, &p.st)
}

func readlink(f fd) (string, error) {
	buf := make([]byte, pathMax+1)
	n, err := unix.Readlinkat(int(f), "", buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}
