package files

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// userXattr is the only namespace of attributes that is read or written here: the
// others are the kernel's (security, trusted) or speak of host ids (system).
const userXattr = "user."

// xattrs returns the user.* attributes of the regular file or directory of which
// f is a descriptor, O_PATH too. None where the file system has none.
func xattrs(f fd) (map[string]string, error) {
	list, err := sized(func(b []byte) (int, error) { return unix.Listxattr(procPath(f), b) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var m map[string]string
	for name := range strings.SplitSeq(string(list), "\x00") {
		if !strings.HasPrefix(name, userXattr) {
			continue
		}
		v, err := sized(func(b []byte) (int, error) { return unix.Getxattr(procPath(f), name, b) })
		if errors.Is(err, unix.ENODATA) {
			continue // gone since
		}
		if err != nil {
			return nil, err
		}
		if m == nil {
			m = make(map[string]string)
		}
		m[name] = string(v)
	}
	return m, nil
}

// sized calls get with a buffer that is large enough; the kernel's limit is 64 KiB.
func sized(get func([]byte) (int, error)) ([]byte, error) {
	buf := make([]byte, 1024)
	n, err := get(buf)
	if errors.Is(err, unix.ERANGE) {
		buf = make([]byte, 64<<10)
		n, err = get(buf)
	}
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}

func copyXattrs(from, to fd) error {
	m, err := xattrs(from)
	if err != nil {
		return err
	}
	return setXattrs(to, m)
}

func setXattrs(f fd, m map[string]string) error {
	for k, v := range m {
		if err := unix.Setxattr(procPath(f), k, []byte(v), 0); err != nil {
			return because(codeOf(err), "attribute %q: %w", k, err)
		}
	}
	return nil
}
