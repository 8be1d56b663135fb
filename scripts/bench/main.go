package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// options are the command line.
type options struct {
	quick           bool
	json            string
	only            string
	pool            string
	image           string
	demo, workloads string // images with programs; need not be there
	bin             string
	dir             string
}

// section is a part of the benchmark that can be run alone.
type section struct {
	name string
	run  func(context.Context, *env) error
}

func sections() []section {
	return []section{
		{"files", benchFiles},
		{"depth", benchDepth},
		{"alive", benchAlive},
		{"processes", benchProcesses},
		{"postgres", benchPostgres},
		{"cold", benchCold},
		{"burst", benchBurst},
		{"many", benchMany},
	}
}

func main() {
	var o options
	var names []string
	for _, s := range sections() {
		names = append(names, s.name)
	}
	flag.BoolVar(&o.quick, "quick", false, "fewer sizes and repetitions: less than two minutes")
	flag.StringVar(&o.json, "json", "build/bench.json", "where to write the results; empty: nowhere")
	flag.StringVar(&o.only, "only", "", "only these, comma-separated: "+strings.Join(names, ", "))
	flag.StringVar(&o.pool, "pool", "", "file system of the layers: empty for the one of -dir, or xfs (a loop device, with reflinks)")
	flag.StringVar(&o.image, "image", "build/tiny.tar", "root file system of the sandboxes and containers")
	flag.StringVar(&o.workloads, "workloads", "build/workloads.tar", "image with Python and PostgreSQL, for processes")
	flag.StringVar(&o.demo, "demo", "build/demo.tar", "image with Python, in the place of -workloads if that is not there")
	flag.StringVar(&o.bin, "bin", "bin", "directory of cairnd, containerd and the others")
	flag.StringVar(&o.dir, "dir", "/var/tmp", "where to make temporary directories; a short path")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "bench: no arguments are taken")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, out io.Writer) (err error) {
	chosen, err := choose(o.only)
	if err != nil {
		return err
	}
	for _, p := range []*string{&o.bin, &o.image, &o.demo, &o.workloads, &o.dir} {
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	e, err := newEnv(ctx, o, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close(ctx)) }()
	for _, s := range chosen {
		e.say("%s", s.name)
		if err := s.run(ctx, e); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	e.report.finish()
	if err := e.report.print(out); err != nil {
		return err
	}
	if o.json == "" {
		return nil
	}
	return e.report.write(o.json)
}

func choose(only string) ([]section, error) {
	all := sections()
	if only == "" {
		return all, nil
	}
	var chosen []section
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(all, func(s section) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-only: there is no %q", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}
