package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// xfs mounts an XFS with reflinks and (where the kernel
// has them) project quotas, and gives a directory on it.
func xfs(t testing.TB, size string) string {
	t.Helper()
	return loop(t, size, []string{"mkfs.xfs", "-q", "-m", "reflink=1"}, "loop")
}

func ext4(t testing.TB, size string) string {
	t.Helper()
	return loop(t, size, []string{"mkfs.ext4", "-q", "-F"}, "loop")
}

// loop makes and mounts a file system; it is unmounted when the test ends, after
// the daemons that were started later.
func loop(t testing.TB, size string, mkfs []string, mountOptions string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "ce") // root inside sandboxes must pass through it
	if err != nil {
		t.Fatal(err)
	}
	at, image := filepath.Join(dir, "m"), filepath.Join(dir, "image")
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	runHost(t, "truncate", "-s", size, image)
	runHost(t, mkfs[0], append(mkfs[1:], image)...)
	// Not every kernel has project quotas; the daemon says which it found.
	if exec.Command("mount", "-o", mountOptions+",prjquota", image, at).Run() != nil {
		runHost(t, "mount", "-o", mountOptions, image, at)
	}
	t.Cleanup(func() { runHost(t, "umount", at) })
	if err := os.Chmod(at, 0o711); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(at, "pool")
}

func runHost(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}
