package e2e

import (
	"archive/tar"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"cairn/cmd/cairnd/command"
)

const (
	serveEnv  = "CAIRND_E2E"
	agentPath = "/agent" // of the agent, in the image
	imageName = "tiny"
)

// programs is what all tests share; made once by TestMain.
type programs struct {
	bin   string // containerd and its friends, and the cairn-init of this source
	agent string
	image string // tar of the root file system
}

func TestMain(m *testing.M) {
	if os.Getenv(serveEnv) == "serve" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		os.Exit(command.Run(ctx, os.Args[1:], os.Stdout, os.Stderr))
	}
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

// makePrograms builds what runs inside sandboxes and the image that holds it.
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
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "runc"} {
		if err := os.Symlink(filepath.Join(source, "bin", name), filepath.Join(p.bin, name)); err != nil {
			return err
		}
	}
	for out, pkg := range map[string]string{filepath.Join(p.bin, "cairn-init"): "cairn/cmd/cairn-init", p.agent: "cairn/daemon/e2e/agent"} {
		cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", out, pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if msg, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", pkg, err, msg)
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
