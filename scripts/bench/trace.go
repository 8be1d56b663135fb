package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// trace reads what the daemon logs from now on: it tells there, at level debug, what its
// dumps and restores of processes consist of.
type trace struct{ f *os.File }

func (e *env) trace() (*trace, error) {
	f, err := os.Open(filepath.Join(e.cairn.Root(), "cairnd.log"))
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekEnd); err != nil {
		f.Close()
		return nil, err
	}
	return &trace{f}, nil
}

func (t *trace) Close() error { return t.f.Close() }

// phases are the durations of one kind of operation, by the names that the daemon gives
// them, in the order of its first line.
type phases struct {
	names []string
	took  map[string]series
}

// add takes the fields of a line that are durations.
func (p *phases) add(line string) {
	if p.took == nil {
		p.took = map[string]series{}
	}
	for field := range strings.FieldsSeq(line) {
		name, value, found := strings.Cut(field, "=")
		d, err := time.ParseDuration(value)
		if !found || err != nil || name == "time" {
			continue
		}
		if _, known := p.took[name]; !known {
			p.names = append(p.names, name)
		}
		p.took[name] = append(p.took[name], ms(d))
	}
}

// addMarks takes the points of time, in microseconds, that the helper notes.
func (p *phases) addMarks(line string) {
	_, marks, _ := strings.Cut(line, "marks=\"map[")
	marks, _, _ = strings.Cut(marks, "]")
	for field := range strings.FieldsSeq(marks) {
		if name, value, found := strings.Cut(field, ":"); found {
			p.add("at_" + name + "=" + value + "us")
		}
	}
}

// phases gives what was logged so far.
func (t *trace) phases() (dumped, restored phases, err error) {
	scan := bufio.NewScanner(t.f)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		switch line := scan.Text(); {
		case strings.Contains(line, `msg="processes dumped"`):
			dumped.add(line)
		case strings.Contains(line, `msg="processes restored"`):
			restored.add(line)
		case strings.Contains(line, "msg=dumped "):
			dumped.addMarks(line)
		case strings.Contains(line, "msg=restored "):
			restored.addMarks(line)
		}
	}
	if scan.Err() != nil {
		return dumped, restored, fmt.Errorf("read the daemon's log: %w", scan.Err())
	}
	return dumped, restored, nil
}

func (p phases) parts() []part {
	var list []part
	for _, n := range p.names {
		list = append(list, part{What: n, P50: p.took[n].p50(), Min: p.took[n].quantile(0)})
	}
	return list
}
