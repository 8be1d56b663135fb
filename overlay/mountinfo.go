package overlay

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mountEntry is a line of /proc/PID/mountinfo.
type mountEntry struct {
	id, parent int
	dev        uint64
	at         string // as the process sees it
	fstype     string
	source     string
}

// mountTable reads the mounts that a process sees.
func (p *Pool) mountTable(pid int) ([]mountEntry, error) {
	b, err := p.readProc(pid, "mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMountTable(b)
}

func (p *Pool) readProc(pid int, name string) ([]byte, error) {
	f, err := p.openProc(pid, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var buf bytes.Buffer
	if _, err := buf.ReadFrom(f); err != nil {
		return nil, procError(pid, err)
	}
	return buf.Bytes(), nil
}

func (p *Pool) openProc(pid int, name string, flags int) (*os.File, error) {
	path := strconv.Itoa(pid) + "/" + name
	fd, err := unix.Openat(int(p.proc.Fd()), path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, procError(pid, &os.PathError{Op: "open", Path: "/proc/" + path, Err: err})
	}
	return os.NewFile(uintptr(fd), "/proc/"+path), nil
}

func procError(pid int, err error) error {
	// EINVAL is what a zombie's mountinfo gives.
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: %d: %w", ErrGone, pid, err)
	}
	return fmt.Errorf("overlay: process %d: %w", pid, err)
}

func parseMountTable(b []byte) ([]mountEntry, error) {
	var all []mountEntry
	for line := range strings.Lines(string(b)) {
		// 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw
		left, right, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		l, r := strings.Split(left, " "), strings.Split(right, " ")
		if !ok || len(l) < 6 || len(r) < 3 {
			return nil, fmt.Errorf("overlay: mountinfo line %q", line)
		}
		id, err1 := strconv.Atoi(l[0])
		parent, err2 := strconv.Atoi(l[1])
		major, minor, ok := strings.Cut(l[2], ":")
		ma, err3 := strconv.ParseUint(major, 10, 32)
		mi, err4 := strconv.ParseUint(minor, 10, 32)
		if err := errors.Join(err1, err2, err3, err4); err != nil || !ok {
			return nil, fmt.Errorf("overlay: mountinfo line %q", line)
		}
		all = append(all, mountEntry{
			id: id, parent: parent,
			dev:    unix.Mkdev(uint32(ma), uint32(mi)),
			at:     unescapeOctal(l[4]),
			fstype: r[0],
			source: unescapeOctal(r[1]),
		})
	}
	return all, nil
}

// unescapeOctal undoes the \ooo by which /proc writes spaces and the like.
func unescapeOctal(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// rootMount finds the mount that is on top at "/".
func rootMount(all []mountEntry) (mountEntry, error) {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].at == "/" {
			return all[i], nil
		}
	}
	return mountEntry{}, errors.New("overlay: no root in mountinfo")
}

func (m mountEntry) upper() string {
	id, ok := strings.CutPrefix(m.source, sourcePrefix)
	if m.fstype != "overlay" || !ok || checkID(id) != nil {
		return ""
	}
	return id
}

// AttachedRoot is the overlay that is at "/" of a process.
type AttachedRoot struct {
	PID     int    // the process, as the host numbers it
	MountID int    // of the overlay mount
	Dev     uint64 // st_dev of what is on it
	Upper   string // its upper layer, "" when the process has another root
}

// Attached says which overlay a process has at "/".
func (p *Pool) Attached(pid int) (AttachedRoot, error) {
	all, err := p.mountTable(pid)
	if err != nil {
		return AttachedRoot{}, err
	}
	m, err := rootMount(all)
	if err != nil {
		return AttachedRoot{}, err
	}
	return AttachedRoot{PID: pid, MountID: m.id, Dev: m.dev, Upper: m.upper()}, nil
}

// AttachedUpper says which upper layer is attached at "/" of a process: what
// crash recovery goes by. It is "" when the process has no root of a pool.
func AttachedUpper(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return "", procError(pid, err)
	}
	all, err := parseMountTable(b)
	if err != nil {
		return "", err
	}
	m, err := rootMount(all)
	if err != nil {
		return "", err
	}
	return m.upper(), nil
}
