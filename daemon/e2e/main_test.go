package e2e

import (
	"archive/tar"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

const (
	agentPath = "/agent" // of the agent, in the image
	imageName = "tiny"
	// plainDaemon is cairnd without the race detector, which makes it some times slower: for
	// tests of what is on disk after each of very many interruptions.
	plainDaemon = "cairnd-plain"
)

// programs is what all tests share; made once by TestMain.
type programs struct {
	bin   string // containerd and its friends, and cairnd and cairn-init of this source
	agent string
	image string // tar of the root file system
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests need root")
		return 1
	}
	dir, err := os.MkdirTemp("/var/tmp", "ce")
	if err == nil {
		defer os.RemoveAll(dir)
		err = os.Chmod(dir, 0o711)
	}
	if err == nil {
		err = makePrograms(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare the tests:", err)
		return 1
	}
	return m.Run()
}

// makePrograms builds the daemon, what runs inside sandboxes, and their image.
// Tests find it through the environment, so that no package state is needed.
func makePrograms(dir string) error {
	p := programs{bin: filepath.Join(dir, "bin"), agent: filepath.Join(dir, "agent"), image: filepath.Join(dir, "image.tar")}
	if err := os.Mkdir(p.bin, 0o755); err != nil {
		return err
	}
	source, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "runc", "criu"} {
		if err := os.Symlink(filepath.Join(source, "bin", name), filepath.Join(p.bin, name)); err != nil {
			return err
		}
	}
	small := []string{"-trimpath", "-ldflags", "-s -w"} // as the Makefile has it
	for _, b := range []struct {
		out, pkg string
		flags    []string
	}{
		{filepath.Join(p.bin, "cairnd"), "cairn/cmd/cairnd", daemonFlags()},
		{filepath.Join(p.bin, plainDaemon), "cairn/cmd/cairnd", []string{"-trimpath"}},
		{filepath.Join(p.bin, "cairn-init"), "cairn/cmd/cairn-init", small},
		{filepath.Join(p.bin, "cairn-criu"), "cairn/cmd/cairn-criu", small},
		{p.agent, "cairn/daemon/e2e/agent", small},
	} {
		cmd := exec.Command("go", append(append([]string{"build", "-buildvcs=false"}, b.flags...), "-o", b.out, b.pkg)...)
		if !slices.Contains(b.flags, "-race") {
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		}
		if msg, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", b.pkg, err, msg)
		}
	}
	if err := makeImage(p.image, p.agent, filepath.Join(source, "build", "tiny.tar")); err != nil {
		return fmt.Errorf("%w (make images makes build/tiny.tar)", err)
	}
	for k, v := range map[string]string{"E2E_BIN": p.bin, "E2E_AGENT": p.agent, "E2E_IMAGE": p.image} {
		if err := os.Setenv(k, v); err != nil {
			return err
		}
	}
	return nil
}

func thePrograms() programs {
	return programs{bin: os.Getenv("E2E_BIN"), agent: os.Getenv("E2E_AGENT"), image: os.Getenv("E2E_IMAGE")}
}

// makeImage writes a root file system tar: the given one, and the agent.
func makeImage(to, agent, rootFS string) (err error) {
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	data, err := os.ReadFile(agent)
	if err != nil {
		return err
	}
	w := tar.NewWriter(out)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "." + agentPath, Mode: 0o755, Size: int64(len(data))}); err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	if err := w.Flush(); err != nil { // no trailer: the other archive follows
		return err
	}
	in, err := os.Open(rootFS)
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = io.Copy(out, in)
	return err
}
