package overlay

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// agentMain is an agent's process: it gets into some state and stays there
// until its standard input ends.
func agentMain() {
	role := os.Getenv("ROLE")
	if seed, ok := strings.CutPrefix(role, "hammer "); ok {
		n, err := strconv.ParseUint(seed, 10, 64)
		if err != nil {
			fmt.Print(err)
			os.Exit(1)
		}
		hammerMain(n)
		return
	}
	f, ok := agents()[role]
	if !ok {
		fmt.Print("no such role")
		os.Exit(1)
	}
	keep, err := f()
	if err != nil {
		fmt.Print(err)
		os.Exit(1)
	}
	fmt.Print("ready\n")
	var b [1]byte
	for {
		n, err := os.Stdin.Read(b[:])
		if err != nil || n == 0 {
			break
		}
	}
	runtime.KeepAlive(keep)
}

// agents are the states. Those whose name starts with "ok" keep nothing from
// being switched. /lower is a file of a layer, /upper one of the upper,
// /lowerdir and /upperdir directories with a file "f".
func agents() map[string]func() (any, error) {
	open := func(path string, flags int) func() (any, error) {
		return func() (any, error) { return os.OpenFile(path, flags|unix.O_NONBLOCK, 0o644) }
	}
	return map[string]func() (any, error){
		"ok idle":       func() (any, error) { return nil, nil },
		"ok read lower": open("/lower", os.O_RDONLY),
		"ok mount":      open("/run/cairn", os.O_RDONLY),
		"ok write io":   open("/run/cairn/out", os.O_RDWR|os.O_CREATE),
		"ok deleted": func() (any, error) {
			f, err := os.Create("/gone")
			if err != nil {
				return nil, err
			}
			defer f.Close()
			r, err := os.Open("/gone")
			if err != nil {
				return nil, err
			}
			return r, os.Remove("/gone")
		},
		"ok private mapping": mapped("/lower", os.O_RDONLY, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE),
		"ok memfd": func() (any, error) {
			fd, err := unix.MemfdCreate("m", 0)
			if err != nil {
				return nil, err
			}
			if err := unix.Ftruncate(fd, 4096); err != nil {
				return nil, err
			}
			return unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		},
		"ok abstract socket": func() (any, error) { return net.Listen("unix", "@name") },
		"ok io socket":       func() (any, error) { return net.Listen("unix", "/run/cairn/sock") },
		"ok cwd on a mount":  func() (any, error) { return nil, os.Chdir("/run/cairn") },
		"ok watch on a mount": func() (any, error) {
			fd, err := unix.InotifyInit1(0)
			if err != nil {
				return nil, err
			}
			_, err = unix.InotifyAddWatch(fd, "/run/cairn", unix.IN_CREATE)
			return fd, err
		},

		"open_writable":        open("/lower", os.O_WRONLY),
		"open_writable upper":  open("/upper", os.O_RDWR),
		"open_upper":           open("/upper", os.O_RDONLY),
		"open_directory":       open("/lowerdir", os.O_RDONLY),
		"open_path":            open("/lower", unix.O_PATH),
		"open_special":         open("/fifo", os.O_RDONLY),
		"cwd":                  func() (any, error) { return nil, os.Chdir("/lowerdir") },
		"root":                 func() (any, error) { return nil, unix.Chroot("/lowerdir") },
		"shared_mapping":       mapped("/upper", os.O_RDWR, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED),
		"shared_mapping lower": mapped("/lower", os.O_RDONLY, unix.PROT_READ, unix.MAP_SHARED),
		"open_upper linked": func() (any, error) {
			if err := os.WriteFile("/one", nil, 0o644); err != nil {
				return nil, err
			}
			if err := os.Link("/one", "/two"); err != nil {
				return nil, err
			}
			f, err := os.Open("/one")
			if err != nil {
				return nil, err
			}
			return f, os.Remove("/one")
		},
		"file_lock": func() (any, error) {
			f, err := os.Open("/lower")
			if err != nil {
				return nil, err
			}
			return f, unix.Flock(int(f.Fd()), unix.LOCK_EX)
		},
		"watch": func() (any, error) {
			fd, err := unix.InotifyInit1(0)
			if err != nil {
				return nil, err
			}
			_, err = unix.InotifyAddWatch(fd, "/lowerdir", unix.IN_CREATE)
			return fd, err
		},
		"watch fanotify": func() (any, error) {
			return unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_REPORT_FID, unix.O_RDONLY)
		},
		"unix_socket": func() (any, error) { return net.Listen("unix", "/upperdir/sock") },
		"unix_socket relative": func() (any, error) {
			if err := os.Chdir("/upperdir"); err != nil {
				return nil, err
			}
			l, err := net.Listen("unix", "relative")
			if err != nil {
				return nil, err
			}
			return l, os.Chdir("/")
		},
		"unix_socket newline": func() (any, error) { return net.Listen("unix", "/upperdir/a\nb c") },
		"passed_descriptor": func() (any, error) {
			f, err := os.Open("/lowerdir")
			if err != nil {
				return nil, err
			}
			defer f.Close()
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
			if err != nil {
				return nil, err
			}
			return fds, unix.Sendmsg(fds[0], []byte("x"), unix.UnixRights(int(f.Fd())), nil, 0)
		},
		"io_uring": func() (any, error) {
			var params [120]byte
			fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
			if errno != 0 {
				return nil, errno
			}
			return fd, nil
		},
		"namespace": func() (any, error) {
			return nil, onStayingThread(func() error { return unix.Unshare(unix.CLONE_NEWNS) }, true)
		},
		"cwd of a thread": func() (any, error) {
			return nil, onStayingThread(func() error {
				if err := unix.Unshare(unix.CLONE_FS); err != nil {
					return err
				}
				return unix.Chdir("/lowerdir")
			}, false)
		},
		"open_directory of a thread": func() (any, error) {
			return nil, onStayingThread(func() error {
				if err := unix.Unshare(unix.CLONE_FILES); err != nil {
					return err
				}
				_, err := unix.Open("/lowerdir", unix.O_RDONLY, 0)
				return err
			}, false)
		},
	}
}

// onStayingThread runs f on a thread that stays as f leaves it. Only the
// first thread's namespaces are seen as those of the process, so that for
// namespaces the process is a child that was made with them.
func onStayingThread(f func() error, child bool) error {
	if child {
		cmd := self("ok idle")
		cmd.Stdout = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
		if _, err := cmd.StdinPipe(); err != nil {
			return err
		}
		return cmd.Start()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
		select {}
	}()
	return <-done
}

func mapped(path string, flags, prot, how int) func() (any, error) {
	return func() (any, error) {
		f, err := os.OpenFile(path, flags, 0)
		if err != nil {
			return nil, err
		}
		// Closed: the mapping alone has to be noticed.
		defer f.Close()
		b, err := unix.Mmap(int(f.Fd()), 0, 4096, prot, how)
		if err == nil {
			_ = b[0]
		}
		return b, err
	}
}
