package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"cairn/scripts/bench/baseline"
	"cairn/scripts/bench/rig"
)

// Options of a run.
type Options struct {
	Bin      string // directory of cairnd, containerd and the others
	ImageTar string // root file system with Python, git and SQLite
	RepoTar  string // networkx.git, a bare repository, and tools, pytest
	Root     string // state directory, absent or empty; "" makes a temporary one
	Keep     bool   // leave the daemon and its sandboxes running
	JSON     bool   // print nothing but the result, as JSON
	Out      io.Writer
}

// Result is what a run measured and proved.
type Result struct {
	Operations []Operation `json:"operations"`
	Proofs     []Proof     `json:"proofs"`
	TookS      float64     `json:"took_s"`
	Root       string      `json:"root,omitempty"` // when it was kept
}

// Operation is one operation of Cairn beside containerd's way of doing the same.
type Operation struct {
	Name         string  `json:"name"`
	MS           float64 `json:"ms"`
	ContainerdMS float64 `json:"containerd_ms"`
	Way          string  `json:"containerd_way"`
}

// Proof is a claim, and whether it held.
type Proof struct {
	Claim  string `json:"claim"`
	Held   bool   `json:"held"`
	Detail string `json:"detail,omitempty"`
}

// ErrNotProved says that a claim did not hold.
var ErrNotProved = errors.New("not everything was proved")

// Run runs the demonstration and removes everything it made, also when ctx ends.
func Run(ctx context.Context, o Options) (err error) {
	d := &demo{o: o, began: time.Now()}
	defer func() { err = errors.Join(err, d.close(ctx)) }()
	if err := d.open(ctx); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{d.create, d.clone, d.checkpoint, d.ruin, d.restore, d.remember, d.fork} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	d.result.TookS = time.Since(d.began).Seconds()
	if err := d.summary(); err != nil {
		return err
	}
	for _, p := range d.result.Proofs {
		if !p.Held {
			return ErrNotProved
		}
	}
	return nil
}

// demo is one run.
type demo struct {
	o      Options
	began  time.Time
	root   string
	ours   bool // root was made, and is to be removed
	result Result

	cairn     *rig.Cairn
	base      *baseline.Containerd
	image     string              // the root file system as a snapshot of containerd
	container *baseline.Container // what the sandbox is to Cairn
	committed string              // its snapshot

	sandbox string // id
	good    string // id of the checkpoint
	before  tree   // files at the checkpoint
}

// open starts both daemons and gives them the image.
func (d *demo) open(ctx context.Context) (err error) {
	for _, f := range []string{d.o.ImageTar, d.o.RepoTar} {
		if _, err := os.Stat(f); err != nil {
			return fmt.Errorf("%w; `make demo` makes it", err)
		}
	}
	if d.root = d.o.Root; d.root == "" {
		d.root, err = os.MkdirTemp("/var/tmp", "cairn-demo-")
	} else {
		d.root, err = filepath.Abs(d.root)
		err = errors.Join(err, empty(d.root))
	}
	if err != nil {
		return err
	}
	d.ours = true
	if err := errors.Join(os.MkdirAll(d.root, 0o711), os.Chmod(d.root, 0o711)); err != nil {
		return err
	}
	d.say("starting cairnd in %s, and a containerd beside it to compare with", d.root)
	const config = "[log]\nlevel = \"warn\"\n[warm]\nnone = 4\n"
	if d.cairn, err = rig.Start(ctx, rig.Options{Bin: d.o.Bin, Root: filepath.Join(d.root, "c"), Config: config}); err != nil {
		return err
	}
	if d.base, err = baseline.Start(ctx, d.o.Bin, filepath.Join(d.root, "b")); err != nil {
		return err
	}
	took, err := timed(func() error { return d.importImage(ctx) })
	if err != nil {
		return fmt.Errorf("import %s: %w", d.o.ImageTar, err)
	}
	d.say("imported %s: a Debian with Python, git and SQLite (%s)", filepath.Base(d.o.ImageTar), short(took))
	d.image, err = d.base.Import(ctx, func(dir string) error { return baseline.Untar(ctx, d.o.ImageTar, dir) })
	return err
}

// empty checks that dir is not there, or holds nothing.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(entries) > 0:
		return fmt.Errorf("%s is not empty: the demonstration needs a directory of its own", dir)
	}
	return nil
}

// close ends and removes everything.
func (d *demo) close(ctx context.Context) error {
	var errs []error
	if d.base != nil {
		errs = append(errs, d.base.Close(ctx))
	}
	if d.cairn != nil {
		if d.o.Keep {
			return errors.Join(errs...)
		}
		if err := d.cairn.Close(ctx); err != nil {
			return errors.Join(append(errs, err)...) // what is left is still needed to look at
		}
	}
	if d.ours {
		errs = append(errs, os.RemoveAll(d.root))
	}
	return errors.Join(errs...)
}

// say tells what is done.
func (d *demo) say(format string, args ...any) {
	if !d.o.JSON {
		fmt.Fprintf(d.o.Out, format+"\n", args...)
	}
}

// heading begins a part of the story.
func (d *demo) heading(title string) { d.say("\n%s", title) }

// op records an operation and tells of it.
func (d *demo) op(name string, took, theirs time.Duration, way string) {
	d.result.Operations = append(d.result.Operations, Operation{Name: name, MS: millis(took), ContainerdMS: millis(theirs), Way: way})
	d.say("  %-28s %9s    containerd: %9s (%s)", name, short(took), short(theirs), way)
}

// prove records whether a claim held.
func (d *demo) prove(held bool, claim, detail string) {
	d.result.Proofs = append(d.result.Proofs, Proof{Claim: claim, Held: held, Detail: detail})
	mark := "proved"
	if !held {
		mark = "FAILED"
	}
	d.say("  %s: %s%s", mark, claim, detail)
}

// summary prints the table, or the JSON.
func (d *demo) summary() error {
	if d.o.Keep {
		d.result.Root = filepath.Join(d.root, "c")
	}
	if d.o.JSON {
		enc := json.NewEncoder(d.o.Out)
		enc.SetIndent("", "  ")
		return enc.Encode(d.result)
	}
	d.say("\n%-28s %10s %12s %9s", "operation", "Cairn", "containerd", "")
	for _, o := range d.result.Operations {
		d.say("%-28s %7.1f ms %9.1f ms %7.1fx", o.Name, o.MS, o.ContainerdMS, o.ContainerdMS/o.MS)
	}
	held := 0
	for _, p := range d.result.Proofs {
		if p.Held {
			held++
		} else {
			d.say("FAILED: %s%s", p.Claim, p.Detail)
		}
	}
	d.say("%d of %d proofs held; %.0f s", held, len(d.result.Proofs), d.result.TookS)
	if d.o.Keep {
		d.say("\nThe daemon runs on (process %d):\n  %s/cairn --socket %s/run/cairn.sock ps", d.cairn.PID(), d.o.Bin, d.result.Root)
	}
	return nil
}

func timed(f func() error) (time.Duration, error) {
	began := time.Now()
	err := f()
	return time.Since(began), err
}

func millis(t time.Duration) float64 { return float64(t) / float64(time.Millisecond) }

// short is a duration for people.
func short(t time.Duration) string {
	if t >= time.Second {
		return fmt.Sprintf("%.2f s", t.Seconds())
	}
	return fmt.Sprintf("%.1f ms", millis(t))
}

// indent moves text to the right.
func indent(text string) string {
	return "      " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n      ")
}
