package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"cairn/api/client"
	"cairn/api/types"
	"cairn/scripts/bench/baseline"
	"cairn/scripts/bench/rig"
)

const (
	imageName = "bench"
	warmNow   = 16 // blank containers kept ready unless a section says otherwise
	workDir   = "/app"
)

// env is what the sections measure: a Cairn, and a containerd beside it.
type env struct {
	o        options
	out      io.Writer
	dir      string // temporary, holds everything
	pool     string // directory of the layers when it is not below Cairn's; a mount
	warm     int    // size of the pool now
	log      string // what the daemon logs; "" for warnings
	programs bool   // the image of processes is there
	report   report

	cairn    *rig.Cairn
	base     *baseline.Containerd
	snapshot string // image of the containers
	unmount  func() error
}

func newEnv(ctx context.Context, o options, out io.Writer) (_ *env, err error) {
	dir, err := os.MkdirTemp(o.dir, "cb-")
	if err != nil {
		return nil, err
	}
	e := &env{o: o, out: out, dir: dir, report: report{Started: time.Now().UTC(), Quick: o.quick, Machine: thisMachine()}}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close(ctx))
		}
	}()
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	if o.pool != "" {
		e.pool = filepath.Join(dir, "p")
		if e.unmount, err = mountPool(ctx, o.pool, filepath.Join(dir, "pool."+o.pool), e.pool); err != nil {
			return nil, err
		}
	}
	e.warm = warmNow
	if e.cairn, err = rig.Start(ctx, rig.Options{Bin: o.bin, Root: filepath.Join(dir, "c"), Pool: e.pool, Config: e.config(warmNow, 0)}); err != nil {
		return nil, err
	}
	e.say("importing %s", o.image)
	if err := e.importImage(ctx, imageName, o.image); err != nil {
		return nil, fmt.Errorf("import %s: %w", o.image, err)
	}
	if e.base, err = baseline.Start(ctx, o.bin, filepath.Join(dir, "b")); err != nil {
		return nil, err
	}
	e.snapshot, err = e.base.Import(ctx, func(dir string) error { return baseline.Untar(ctx, o.image, dir) })
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", o.image, err)
	}
	info, err := client.Get[types.Info](e.cairn.GetInfo(ctx))
	e.report.Machine.Features = info.Features
	return e, err
}

// config is a daemon's configuration; depth 0 is the default.
func (e *env) config(warm, depth int) string {
	log := e.log
	if log == "" {
		log = "warn"
	}
	s := "[log]\nlevel = \"" + log + "\"\n[limits]\nforks = 1024\nlock_wait = \"5m\"\n[pool]\n"
	if e.pool != "" {
		s += fmt.Sprintf("dir = %q\n", e.pool)
	}
	if depth > 0 {
		s += fmt.Sprintf("max_depth = %d\n", depth)
	}
	return s + fmt.Sprintf("[warm]\nnone = %d\n", warm)
}

// configure starts the daemon again with another configuration.
func (e *env) configure(ctx context.Context, warm, depth int) error {
	e.warm = warm
	return e.cairn.Restart(ctx, e.config(warm, depth))
}

func (e *env) close(ctx context.Context) error {
	var errs []error
	if e.base != nil {
		errs = append(errs, e.base.Close(ctx))
	}
	if e.cairn != nil {
		if err := e.cairn.Close(ctx); err != nil {
			return errors.Join(append(errs, err)...) // what is left is still needed to look at
		}
	}
	if e.unmount != nil {
		errs = append(errs, e.unmount())
	}
	return errors.Join(append(errs, os.RemoveAll(e.dir))...)
}

// say tells what is being done.
func (e *env) say(format string, args ...any) {
	fmt.Fprintf(e.out, "== "+format+"\n", args...)
}

// pick is one of two numbers, the smaller for a quick run.
func (e *env) pick(quick, full int) int {
	if e.o.quick {
		return quick
	}
	return full
}

func (e *env) importImage(ctx context.Context, name, tar string) error {
	f, err := os.Open(tar)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = client.Get[types.Image](e.cairn.AddImageWithBody(ctx, &types.AddImageParams{Name: &name}, "application/x-tar", f))
	return err
}

// mountPool mounts a new file system, in the file image, at dir.
func mountPool(ctx context.Context, kind, image, dir string) (unmount func() error, err error) {
	if kind != "xfs" {
		return nil, fmt.Errorf("-pool %q: want xfs or nothing", kind)
	}
	const size = 20 << 30 // sparse
	f, err := os.Create(image)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(size), f.Close(), os.MkdirAll(dir, 0o711)); err != nil {
		return nil, err
	}
	if err := command(ctx, "mkfs.xfs", "-q", "-m", "reflink=1", image); err != nil {
		return nil, err
	}
	if command(ctx, "mount", "-o", "loop,prjquota", image, dir) != nil {
		// This kernel may have no quotas; they are not what is measured.
		if err := command(ctx, "mount", "-o", "loop", image, dir); err != nil {
			return nil, err
		}
	}
	return func() error { return command(context.WithoutCancel(ctx), "umount", dir) }, os.Chmod(dir, 0o711)
}

func command(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// filesTar writes a tar of n files of 200 bytes, 500 in a directory.
func filesTar(path string, n int) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	const perDir = 500
	t := tar.NewWriter(f)
	for i := range n {
		if i%perDir == 0 {
			if err := t.WriteHeader(&tar.Header{Name: fmt.Sprintf("d%d/", i/perDir), Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
				return err
			}
		}
		body := fmt.Appendf(nil, "%0200d", i)
		if err := t.WriteHeader(&tar.Header{Name: fmt.Sprintf("d%d/f%d", i/perDir, i), Mode: 0o644, Size: int64(len(body))}); err != nil {
			return err
		}
		if _, err := t.Write(body); err != nil {
			return err
		}
	}
	return t.Close()
}
