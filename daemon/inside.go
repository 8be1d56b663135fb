package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"cairn/criu"
)

const (
	initName   = "cairn-init"
	helperName = "cairn-criu"
	bundleName = "criu"
)

// criuBundle finds the directory with CRIU and its libraries beside the other programs.
func criuBundle(configured string) (string, error) {
	loader, err := binary(configured, filepath.Join(bundleName, "ld.so"))
	if err != nil {
		return "", err
	}
	return filepath.Dir(loader), nil
}

// openDumps makes ready to checkpoint processes. Where CRIU is missing, or does not
// fit, everything else works; its probe says what is wrong.
func (d *Daemon) openDumps(ctx context.Context, initDir string) error {
	helper, err := binary(d.cfg.Containerd.Binaries, helperName)
	if err != nil {
		d.log.Warn("processes cannot be checkpointed", "err", err)
		helper = filepath.Join("/", helperName)
	}
	d.criu, err = criu.New(criu.Options{
		Bundle: criu.Bundle{Dir: filepath.Join(initDir, bundleName)}, Helper: helper,
		External: []string{controlDir}, Logger: d.log,
	})
	if err != nil {
		return err
	}
	d.onClose("criu", closing(d.criu))
	f, err := d.criu.Probe(ctx)
	if err != nil {
		return err
	}
	d.log.Info("criu", "version", f.Version, "supported", f.Supported, "incremental", f.Incremental, "reasons", f.Reasons)
	return nil
}

// installInside copies cairn-init, and CRIU's bundle if there is one, into a directory of
// the state, alone: that directory is what sandboxes see at /.cairn, and an upgrade must
// not change a file that runs in them. Its name is made from its content, that of
// cairn-init before the hyphen. Former ones stay: checkpoints with processes need the
// cairn-init that the processes were started by.
func installInside(stateDir, initBinary, bundle string) (dir string, err error) {
	files := map[string]string{initName: initBinary}
	var names []string
	if bundle != "" {
		entries, err := os.ReadDir(bundle) // sorted
		if err != nil {
			return "", err
		}
		for _, e := range entries {
			name := filepath.Join(bundleName, e.Name())
			names = append(names, name)
			files[name] = filepath.Join(bundle, e.Name())
		}
	}
	program, err := sumOf(files, initName)
	if err != nil {
		return "", err
	}
	rest, err := sumOf(files, names...)
	if err != nil {
		return "", err
	}
	parent := initParent(stateDir)
	dir = filepath.Join(parent, program+"-"+rest)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(parent, ".new-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	for _, name := range append(names, initName) {
		to := filepath.Join(tmp, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), copyProgram(to, files[name])); err != nil {
			return "", err
		}
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	return dir, os.Rename(tmp, dir)
}

func initParent(stateDir string) string { return filepath.Join(stateDir, "init") }

// findInit finds the newest directory of installInside with a given cairn-init.
func findInit(stateDir, program string) (dir string, found bool) {
	entries, err := os.ReadDir(initParent(stateDir))
	if err != nil {
		return "", false
	}
	var newest time.Time
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !strings.HasPrefix(e.Name(), program+"-") || info.ModTime().Before(newest) {
			continue
		}
		dir, newest, found = filepath.Join(initParent(stateDir), e.Name()), info.ModTime(), true
	}
	return dir, found
}

// sumOf gives a hash of the named files.
func sumOf(files map[string]string, names ...string) (string, error) {
	sum := sha256.New()
	for _, name := range names {
		if err := addFile(sum, name, files[name]); err != nil {
			return "", err
		}
	}
	const enough = 8
	return hex.EncodeToString(sum.Sum(nil)[:enough]), nil
}

func addFile(sum hash.Hash, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := fmt.Fprintf(sum, "%s\n", name); err != nil {
		return err
	}
	n, err := io.Copy(sum, f)
	if err == nil {
		_, err = fmt.Fprintf(sum, "\n%d\n", n)
	}
	return err
}

// copyProgram copies a file that everyone may run and nobody changes, to the disk.
func copyProgram(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(0o755), out.Sync(), out.Close())
}
