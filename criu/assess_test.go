package criu

import (
	"strings"
	"testing"

	"cairn/criu/internal/frame"
)

func TestAssess(t *testing.T) {
	good := frame.Probe{Version: Least, MemTrack: true, CheckPassed: true, CacheSaved: true}
	if f := assess(good); !f.Supported || !f.Incremental || len(f.Reasons) != 0 || f.Version != "4.3" {
		t.Errorf("all there: %+v", f)
	}
	for name, c := range map[string]struct {
		change    func(*frame.Probe)
		supported bool
		says      string
	}{
		"old CRIU":     {func(p *frame.Probe) { p.Version = 31701 }, false, "CRIU is 3.17.1"},
		"old kernel":   {func(p *frame.Probe) { p.CheckPassed = false; p.Complaints = []string{"no clone3"} }, false, "no clone3"},
		"no tracking":  {func(p *frame.Probe) { p.MemTrack = false }, true, "changed pages"},
		"nowhere kept": {func(p *frame.Probe) { p.CacheSaved = false }, true, "30 ms"},
	} {
		p := good
		c.change(&p)
		if f := assess(p); f.Supported != c.supported || len(f.Reasons) != 1 || !strings.Contains(f.Reasons[0], c.says) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}
