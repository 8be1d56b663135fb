package pages_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

// run builds what is needed inside sandboxes into one directory.
func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "cairn-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	for _, p := range []string{"cairn-init", "cairn-criu"} {
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, p), "cairn/cmd/"+p)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", p, err, out)
			return 1
		}
	}
	if out, err := exec.Command("cp", "-r", "../../bin/criu", dir).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "copy CRIU: %v\n%s", err, out)
		return 1
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	program = dir
	return m.Run()
}
