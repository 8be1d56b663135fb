package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// lockFile takes the state directory for this process; the kernel gives it back
// when the process ends, however it ends.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another cairnd uses this state directory (it holds %s)", path)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// hostRestarted says whether the host has booted since the daemon last ran here,
// and remembers the present boot once remember is called.
func hostRestarted(stateDir string) (restarted bool, remember func() error, err error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return false, nil, err
	}
	boot := strings.TrimSpace(string(raw))
	file := filepath.Join(stateDir, "boot-id")
	last, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, nil, err
	}
	remember = func() error { return renameio.WriteFile(file, []byte(boot+"\n"), 0o600) }
	return len(last) > 0 && strings.TrimSpace(string(last)) != boot, remember, nil
}

// binary finds a program that comes with Cairn: in the configured directory, or
// beside the daemon's own executable, or in ../libexec/cairn.
func binary(configured, name string) (string, error) {
	var dirs []string
	if configured != "" {
		dirs = []string{configured}
	} else {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		here := filepath.Dir(self)
		dirs = []string{here, filepath.Join(here, "..", "libexec", "cairn")}
	}
	for _, d := range dirs {
		p := filepath.Join(d, name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return filepath.Clean(p), nil
		}
	}
	return "", fmt.Errorf("%s is in none of %s", name, strings.Join(dirs, ", "))
}
