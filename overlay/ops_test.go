package overlay

import (
	"fmt"
	"iter"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// op is one operation on files, done by a helper inside a container.
// Strings that JSON can't carry go as bytes.
type op struct {
	Kind string
	Path []byte
	To   []byte
	Data []byte
	Off  int64
	Mode uint32
	UID  int
	GID  int
}

func (o op) run() error {
	path, to := string(o.Path), string(o.To)
	switch o.Kind {
	case "create":
		f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o644)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.Write(o.Data)
		return err
	case "write":
		f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteAt(o.Data, o.Off)
		return err
	case "append":
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.Write(o.Data)
		return err
	case "truncate":
		f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		return f.Truncate(o.Off)
	case "mkdir":
		return os.Mkdir(path, 0o755)
	case "mkdirall":
		return os.MkdirAll(path, 0o755)
	case "rename":
		err := os.Rename(path, to)
		if err != nil && strings.Contains(err.Error(), "cross-device") {
			return moveTree(path, to)
		}
		return err
	case "link":
		return os.Link(path, to)
	case "symlink":
		return os.Symlink(to, path)
	case "chmod":
		return unix.Fchmodat(unix.AT_FDCWD, path, o.Mode, 0)
	case "chown":
		return os.Lchown(path, o.UID, o.GID)
	case "setxattr":
		return unix.Lsetxattr(path, to, o.Data, 0)
	case "removexattr":
		return unix.Lremovexattr(path, to)
	case "mkfifo":
		return unix.Mkfifo(path, 0o640)
	case "mksock":
		return unix.Mknod(path, unix.S_IFSOCK|0o600, 0)
	case "remove":
		// RemoveAll would open the parent, even if that is a fifo.
		if _, err := os.Lstat(path); err != nil {
			return err
		}
		return os.RemoveAll(path)
	case "utimes":
		ts := unix.Timespec{Sec: o.Off, Nsec: 123456789}
		return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	case "hostname":
		got, err := os.Hostname()
		if err == nil && got != path {
			err = fmt.Errorf("host name is %q", got)
		}
		return err
	case "exists":
		_, err := os.Lstat(path)
		return err
	case "read":
		b, err := os.ReadFile(path)
		if err == nil && string(b) != string(o.Data) {
			err = fmt.Errorf("%s has %q", path, b)
		}
		return err
	}
	return fmt.Errorf("unknown operation %q", o.Kind)
}

// moveTree renames what overlayfs refuses to: like mv, by copying.
func moveTree(from, to string) error {
	st, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return os.Rename(from, to)
	}
	if strings.HasPrefix(to+"/", from+"/") {
		return unix.EINVAL
	}
	if err := os.Mkdir(to, st.Mode().Perm()); err != nil {
		return err
	}
	es, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range es {
		if err := moveTree(from+"/"+e.Name(), to+"/"+e.Name()); err != nil {
			return err
		}
	}
	return os.Remove(from)
}

func create(path, data string) op { return op{Kind: "create", Path: []byte(path), Data: []byte(data)} }

func read(path, data string) op { return op{Kind: "read", Path: []byte(path), Data: []byte(data)} }
func mkdir(path string) op      { return op{Kind: "mkdirall", Path: []byte(path)} }
func remove(path string) op     { return op{Kind: "remove", Path: []byte(path)} }
func exists(path string) op     { return op{Kind: "exists", Path: []byte(path)} }

func splitLines(s string) iter.Seq[string] { return strings.SplitSeq(s, "\n") }

func startAgent(role string) (*exec.Cmd, error) {
	cmd := self(role)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	_ = in // ends the agent when the container ends
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ready := make([]byte, 512)
	n, err := out.Read(ready)
	if err != nil || string(ready[:n]) != "ready\n" {
		return nil, fmt.Errorf("agent %s: %q %w", role, ready[:n], err)
	}
	return cmd, nil
}
