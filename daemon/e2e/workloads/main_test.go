package workloads

import (
	"archive/tar"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests need root")
		return 1
	}
	dir, err := os.MkdirTemp("/var/tmp", "cw") // the path of a socket is short
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare the tests:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	d, err := prepare(dir)
	if d != nil {
		defer func() {
			if err := d.end(); err != nil {
				fmt.Fprintln(os.Stderr, "end the daemon:", err)
				code = 1
			}
		}()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare the tests:", err)
		return 1
	}
	return m.Run()
}

// prepare builds the programs and starts the daemon. Tests find it through the
// environment, so that no package state is needed.
func prepare(dir string) (*server, error) {
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	bin, agent := filepath.Join(dir, "bin"), filepath.Join(dir, "agent")
	if err := build(bin, agent); err != nil {
		return nil, err
	}
	d, err := serve(dir, bin)
	if err != nil {
		return nil, err
	}
	for k, v := range map[string]string{"WORKLOADS_SOCKET": d.socket, "WORKLOADS_LOG": d.log} {
		if err := os.Setenv(k, v); err != nil {
			return d, err
		}
	}
	source, err := filepath.Abs("../../..")
	if err != nil {
		return d, err
	}
	return d, d.importImage(agent, filepath.Join(source, "build", "workloads.tar"))
}

// build makes the programs of this source, and puts the others beside them.
func build(bin, agent string) error {
	if err := os.Mkdir(bin, 0o755); err != nil {
		return err
	}
	source, err := filepath.Abs("../../..")
	if err != nil {
		return err
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "runc"} {
		if err := os.Symlink(filepath.Join(source, "bin", name), filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	// Seen from inside sandboxes, where a symbolic link would lead nowhere.
	if out, err := exec.Command("cp", "-r", filepath.Join(source, "bin", "criu"), bin).CombinedOutput(); err != nil {
		return fmt.Errorf("copy CRIU (make setup makes it): %w: %s", err, out)
	}
	for _, b := range []struct{ out, pkg string }{
		{bin, "cairn/cmd/cairnd"}, {bin, "cairn/cmd/cairn-init"}, {bin, "cairn/cmd/cairn-criu"}, {agent, "cairn/daemon/e2e/workloads/agent"},
	} {
		cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", b.out, b.pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", b.pkg, err, out)
		}
	}
	return nil
}

// image writes the root file system that sandboxes start from: the Debian image, the
// agent, and the programs.
func image(w io.Writer, agent, debian string) error {
	out := tar.NewWriter(w)
	add := func(name, from string) error {
		data, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "./w/" + name, Mode: 0o755, Size: int64(len(data))}); err != nil {
			return err
		}
		_, err = out.Write(data)
		return err
	}
	if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "./w/", Mode: 0o777}); err != nil {
		return err
	}
	if err := add("agent", agent); err != nil {
		return err
	}
	list, err := os.ReadDir("programs")
	if err != nil {
		return err
	}
	for _, e := range list {
		if err := add(e.Name(), filepath.Join("programs", e.Name())); err != nil {
			return err
		}
	}
	if err := out.Flush(); err != nil { // no trailer: the other archive follows
		return err
	}
	in, err := os.Open(debian)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w (make images makes it)", err)
	}
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = io.Copy(w, in)
	return err
}
