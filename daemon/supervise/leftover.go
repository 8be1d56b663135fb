package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// stopGrace is how long containerd may take to end by itself.
const stopGrace = 10 * time.Second

// stopLeftovers ends every containerd that a former daemon started with this
// configuration file. It looks at what runs rather than at a recorded process
// id: a daemon can be killed before it has recorded one, and ids are used again.
func stopLeftovers(ctx context.Context, config string) (int, error) {
	pids, err := leftovers(config)
	for _, pid := range pids {
		err = errors.Join(err, stopProcess(ctx, pid, config))
	}
	return len(pids), err
}

func leftovers(config string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && runs(pid, config) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// runs says whether pid is a containerd with this configuration. A process in a
// sandbox may call itself anything, but root of the host it is not.
func runs(pid int, config string) bool { return runsAs(pid, "--config", config) }

// runsAs says whether pid is a process of the host's root with these two arguments.
func runsAs(pid int, flag, value string) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil || st.Uid != 0 {
		return false
	}
	b, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return false
	}
	args := bytes.Split(bytes.TrimSuffix(b, []byte{0}), []byte{0})
	return len(args) == 3 && string(args[1]) == flag && string(args[2]) == value
}

// stopProcess ends pid by SIGTERM, or SIGKILL when that takes too long.
func stopProcess(ctx context.Context, pid int, config string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if !runs(pid, config) { // it went, and its id is another's now
		return nil
	}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
			if errors.Is(err, unix.ESRCH) {
				return nil
			}
			return fmt.Errorf("stop containerd %d: %w", pid, err)
		}
		for deadline := time.Now().Add(stopGrace); time.Now().Before(deadline); {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
			if n > 0 {
				return nil
			}
			if err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	return fmt.Errorf("containerd %d does not end", pid)
}
