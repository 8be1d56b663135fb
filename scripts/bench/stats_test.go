package main

import (
	"math"
	"testing"
)

func TestQuantile(t *testing.T) {
	var s series
	for i := 100; i > 0; i-- {
		s.add(float64(i))
	}
	for _, c := range []struct{ q, want float64 }{{0, 1}, {0.5, 50}, {0.99, 99}, {1, 100}} {
		if got := s.quantile(c.q); got != c.want {
			t.Errorf("quantile %v of 1 to 100 is %v, want %v", c.q, got, c.want)
		}
	}
	if got := (series{7}).p99(); got != 7 {
		t.Errorf("p99 of one value is %v, want that value", got)
	}
	if got := (series{}).p50(); !math.IsNaN(got) {
		t.Errorf("p50 of nothing is %v, want NaN", got)
	}
	if s[0] != 100 {
		t.Error("the order of measurement was lost")
	}
}

func TestFigures(t *testing.T) {
	var r report
	r.add("exec true", fileCase(100), series{7, 7, 7}, series{42, 42})
	r.add("checkpoint", fileCase(100), series{4}, nil)
	r.add("checkpoint", fileCase(100_000), series{8}, nil)
	r.finish()
	met := map[string]bool{}
	for _, f := range r.Figures {
		met[f.What] = f.Met
	}
	want := map[string]bool{
		"exec of true: API p50":                    false, // 7 > 6
		"exec of true: faster than task.Exec":      false, // 6 < 8
		"checkpoint, quiescent: API p50, captured": true,
		"checkpoint: 100,000 files as against 100": false, // 2 > 1.5
	}
	if len(met) != len(want) {
		t.Errorf("figures %v, want those of %v", met, want)
	}
	for what, w := range want {
		if got, ok := met[what]; !ok || got != w {
			t.Errorf("%s: met %t (there: %t), want %t", what, got, ok, w)
		}
	}
}
