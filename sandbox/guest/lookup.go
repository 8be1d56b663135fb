package guest

import (
	"errors"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"cairn/sandbox/stem/wire"

	"golang.org/x/sys/unix"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// getenv returns the last value of name in env, as a libc would see the first: duplicates
// are the caller's business, and shells differ; the last one wins here and is kept.
func getenv(env []string, name string) (string, bool) {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// checkCwd reports bad_cwd unless the calling thread's user can enter dir.
func checkCwd(dir string) error {
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		err = unix.ENOTDIR
	}
	if err == nil {
		err = unix.Faccessat(unix.AT_FDCWD, dir, unix.X_OK, unix.AT_EACCESS)
	}
	if err != nil {
		return failure{wire.CodeBadCwd, strconv.Quote(dir) + ": " + err.Error()}
	}
	return nil
}

// findCommand resolves name as execvpe(3) would after chdir(cwd): a name with a slash is a
// path, any other is looked for along path. The result is for execve(2) in cwd.
func findCommand(name, path, cwd string) (string, error) {
	if strings.Contains(name, "/") {
		if err := checkCommand(name, cwd); err != nil {
			return "", commandFailure(name, err)
		}
		return name, nil
	}
	denied := error(nil)
	for path != "" {
		var dir string
		dir, path, _ = strings.Cut(path, ":")
		file := dir + "/" + name
		if dir == "" {
			file = "./" + name
		}
		err := checkCommand(file, cwd)
		if err == nil {
			return file, nil
		}
		if errors.Is(err, unix.EACCES) && denied == nil {
			denied = err
		}
	}
	if denied != nil {
		return "", commandFailure(name, denied)
	}
	return "", commandFailure(name, unix.ENOENT)
}

// checkCommand returns nil if file, relative to cwd, is one that the calling thread's user
// may execute.
func checkCommand(file, cwd string) error {
	if !strings.HasPrefix(file, "/") {
		file = cwd + "/" + file
	}
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return unix.EACCES
	}
	return unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS)
}

// commandFailure gives an error of looking for, or of executing, a command its code.
func commandFailure(name string, err error) error {
	var code string
	var errno unix.Errno
	errors.As(err, &errno)
	switch errno {
	case unix.ENOENT, unix.ENOTDIR:
		code = wire.CodeCommandNotFound
	case unix.EAGAIN, unix.ENOMEM, unix.E2BIG, unix.EMFILE, unix.ENFILE:
		code = wire.CodeLimit
	case unix.EIO, unix.EINVAL, unix.EFAULT:
		code = wire.CodeInternal
	default:
		code = wire.CodePermissionDenied
	}
	return failure{code, strconv.Quote(clip(name)) + ": " + err.Error()}
}

func clip(s string) string { return s[:min(len(s), 200)] }

// asUser runs f with the file system rights of id: the kernel checks them, not this
// program. The rights are the calling thread's alone and are given back.
func asUser(id identity, f func() error) error {
	if id.uid == 0 && id.gid == 0 {
		return f()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := unix.Getgroups()
	if err != nil {
		return err
	}
	if err := setThreadGroups(id.groups); err != nil {
		return err
	}
	defer stayVisible()
	setThreadID(unix.SYS_SETFSGID, id.gid)
	setThreadID(unix.SYS_SETFSUID, id.uid)
	err = f()
	setThreadID(unix.SYS_SETFSUID, 0)
	setThreadID(unix.SYS_SETFSGID, 0)
	groups := make([]uint32, len(own))
	for i, g := range own {
		groups[i] = uint32(g)
	}
	if rerr := setThreadGroups(groups); rerr != nil {
		// A thread with the wrong rights must not go on.
		panic("own groups can't be set again: " + rerr.Error())
	}
	return err
}

// stayVisible takes back what the kernel does to a program that takes on other rights, and
// to one whose child does before it has memory of its own: it would no longer show, not
// even to PID 1, what it executes. PID 1 knows a stem by that.
func stayVisible() {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		logf("prctl: ", err.Error())
	}
}

// setThreadGroups is setgroups(2) of the calling thread; unix.Setgroups is the process's.
func setThreadGroups(groups []uint32) error {
	var p unsafe.Pointer
	if len(groups) > 0 {
		p = unsafe.Pointer(&groups[0])
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(p), 0); errno != 0 {
		return errno
	}
	return nil
}

// setThreadID is setfsuid(2) or setfsgid(2), which report no error.
func setThreadID(call uintptr, id uint32) {
	_, _, _ = unix.RawSyscall(call, uintptr(id), 0, 0)
}
