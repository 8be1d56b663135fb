package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// report is everything that was measured; its JSON form is what is written.
type report struct {
	Started time.Time `json:"started"`
	TookS   float64   `json:"took_s"`
	Quick   bool      `json:"quick"`
	Machine machine   `json:"machine"`
	Rows    []row     `json:"rows"`
	Figures []figure  `json:"figures"`
	Details []detail  `json:"details,omitempty"`
	Notes   []string  `json:"notes,omitempty"` // what has to be known to compare
	parts   map[string][]part
}

// machine is where it was measured.
type machine struct {
	CPUs       int               `json:"cpus"`
	Kernel     string            `json:"kernel"`
	MemoryMB   uint64            `json:"memory_mb"`
	LoadBefore float64           `json:"load_before"` // of the last minute
	LoadAfter  float64           `json:"load_after"`
	Features   map[string]string `json:"features"`
}

// row is one job, and the same job done with containerd's own calls where there is
// such a thing.
type row struct {
	Name     string   `json:"name"`
	Case     string   `json:"case"`
	Unit     string   `json:"unit"`
	N        int      `json:"n"`
	Min      float64  `json:"min"`
	P50      float64  `json:"p50"`
	P99      float64  `json:"p99"`
	Max      float64  `json:"max"`
	Baseline *against `json:"containerd,omitempty"`
}

type against struct {
	N     int     `json:"n"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Ratio float64 `json:"times_faster"`
}

// figure is a number that the project means to reach.
type figure struct {
	What   string  `json:"what"`
	Target float64 `json:"target"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Least  bool    `json:"at_least"` // else at most
	Met    bool    `json:"met"`
	Parts  []part  `json:"where_the_time_goes,omitempty"`
}

// part is a share of what an operation takes, in milliseconds.
type part struct {
	What string  `json:"what"`
	P50  float64 `json:"p50"`
	Min  float64 `json:"min,omitempty"`
}

// detail is where the time of a job goes that has no figure to reach.
type detail struct {
	What  string `json:"what"`
	Parts []part `json:"where_the_time_goes"`
}

func (r *report) detail(what string, parts []part) {
	r.Details = append(r.Details, detail{what, parts})
}

// add records a job; base is empty where containerd has nothing like it.
func (r *report) add(name, kase string, s, base series) {
	r.addUnit(name, kase, "ms", s, base)
}

func (r *report) addUnit(name, kase, unit string, s, base series) {
	if len(s) == 0 {
		return
	}
	w := row{Name: name, Case: kase, Unit: unit, N: len(s), Min: s.quantile(0), P50: s.p50(), P99: s.p99(), Max: s.max()}
	if len(base) > 0 {
		w.Baseline = &against{N: len(base), P50: base.p50(), P99: base.p99(), Ratio: base.p50() / s.p50()}
	}
	r.Rows = append(r.Rows, w)
}

// find gives a row, nil when it was not measured.
func (r *report) find(name, kase string) *row {
	for i := range r.Rows {
		if r.Rows[i].Name == name && r.Rows[i].Case == kase {
			return &r.Rows[i]
		}
	}
	return nil
}

// finish compares the rows with what is to be reached.
func (r *report) finish() {
	r.TookS = time.Since(r.Started).Seconds()
	r.Machine.LoadAfter = thisMachine().LoadBefore
	most := func(what string, target float64, unit string, w *row, value func(row) float64) {
		if w != nil {
			v := value(*w)
			r.Figures = append(r.Figures, figure{What: what, Target: target, Value: v, Unit: unit, Met: v <= target, Parts: r.parts[w.Name]})
		}
	}
	least := func(what string, target float64, w *row) {
		if w != nil && w.Baseline != nil {
			v := w.Baseline.Ratio
			r.Figures = append(r.Figures, figure{What: what, Target: target, Value: v, Unit: "x", Least: true, Met: v >= target, Parts: r.parts[w.Name]})
		}
	}
	p50 := func(w row) float64 { return w.P50 }
	few, many := fileCase(100), fileCase(100_000)
	most("checkpoint, quiescent: freeze p50", 2, "ms", r.find("checkpoint freeze", few), p50)
	most("checkpoint, quiescent: API p50, captured", 6, "ms", r.find("checkpoint", few), p50)
	if a, b := r.find("checkpoint", few), r.find("checkpoint", many); a != nil {
		most("checkpoint: 100,000 files as against 100", 1.5, "x", b, func(w row) float64 { return w.P50 / a.P50 })
	}
	if a, b := r.find("checkpoint of new files", few), r.find("checkpoint of new files", many); a != nil {
		most("checkpoint: 100,000 new files as against 100", 1.5, "x", b, func(w row) float64 { return w.P50 / a.P50 })
	}
	most("restore of files: API p50", 15, "ms", r.find("restore", few), p50)
	least("restore of files: faster than containerd", 15, r.find("restore", few))
	most("fork, warm: API p50", 20, "ms", r.find("fork, warm", few), p50)
	most("64 forks from the pool", 2000, "ms", r.find("64 forks at once", ""), p50)
	most("exec of true: API p50", 6, "ms", r.find("exec true", few), p50)
	least("exec of true: faster than task.Exec", 8, r.find("exec true", few))
	r.addProcessFigures(most, least)
	most("memory of an idle sandbox (PSS)", 16, "MB", r.find("memory of an idle sandbox", "pss, 1 sandbox"), p50)
	const wanted = 200
	if w := r.find("sandboxes at once", fmt.Sprintf("running of %d", wanted)); w != nil {
		r.Figures = append(r.Figures, figure{What: "idle sandboxes at once", Target: wanted, Value: w.P50, Least: true, Met: w.P50 >= wanted})
	}
}

// print writes the tables.
func (r *report) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\n%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", "job", "case", "n", "min", "p50", "p99", "containerd p50", "p99", "ratio")
	last := ""
	for _, x := range r.Rows {
		name := x.Name
		if name == last {
			name = ""
		}
		last = x.Name
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t", name, x.Case, x.N, number(x.Min, x.Unit), number(x.P50, x.Unit), number(x.P99, x.Unit))
		if b := x.Baseline; b != nil {
			fmt.Fprintf(w, "%s\t%s\t%sx\t\n", number(b.P50, x.Unit), number(b.P99, x.Unit), digits(b.Ratio))
		} else {
			fmt.Fprint(w, "\t\t\t\n")
		}
	}
	if len(r.Figures) > 0 {
		fmt.Fprintf(w, "\n%s\t%s\t%s\t%s\t\n", "figure", "wanted", "measured", "")
	}
	for _, f := range r.Figures {
		sign, met := "<=", "met"
		if f.Least {
			sign = ">="
		}
		if !f.Met {
			met = "NOT met"
		}
		fmt.Fprintf(w, "%s\t%s %s\t%s\t%s\t\n", f.What, sign, number(f.Target, f.Unit), number(f.Value, f.Unit), met)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, f := range r.Figures {
		if !f.Met {
			printParts(out, f.What, f.Parts)
		}
	}
	for _, d := range r.Details {
		printParts(out, d.What, d.Parts)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(out, "\n%s\n", n)
	}
	_, err := fmt.Fprintf(out, "\n%d CPUs, Linux %s, %s; load %.1f at the start, %.1f at the end; took %.0f s\n",
		r.Machine.CPUs, r.Machine.Kernel, r.Machine.Features["file_system"], r.Machine.LoadBefore, r.Machine.LoadAfter, r.TookS)
	return err
}

func printParts(out io.Writer, what string, parts []part) {
	if len(parts) == 0 {
		return
	}
	fmt.Fprintf(out, "where the time goes (min, p50), %s:\n", what)
	least := func(v float64) string {
		if v == 0 {
			return ""
		}
		return number(v, "ms")
	}
	for _, p := range parts {
		fmt.Fprintf(out, "  %8s  %8s  %s\n", least(p.Min), number(p.P50, "ms"), p.What)
	}
}

// digits is v with three significant digits or so.
func digits(v float64) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func number(v float64, unit string) string {
	return strings.TrimSpace(digits(v) + " " + unit)
}

// write puts the report into a file.
func (r *report) write(path string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

func thisMachine() machine {
	m := machine{CPUs: runtime.NumCPU()}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		m.Kernel = unix.ByteSliceToString(uts.Release[:])
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		const fixed = 1 << 16 // of the load averages
		m.MemoryMB, m.LoadBefore = info.Totalram*uint64(info.Unit)>>20, float64(info.Loads[0])/fixed
	}
	return m
}
