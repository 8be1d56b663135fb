package stem_test

import (
	"slices"
	"testing"
	"time"

	"cairn/sandbox/stem"
)

// BenchmarkExecTrue is a start, a wait for the end and the forgetting of true(1).
func BenchmarkExecTrue(b *testing.B) {
	box := newBox(b, stem.Options{})
	var times []time.Duration
	for b.Loop() {
		begin := time.Now()
		id := box.newID()
		if _, err := box.Start(b.Context(), stem.Request{ID: id, Argv: []string{"/bin/true"}}); err != nil {
			b.Fatal(err)
		}
		if _, err := box.Wait(b.Context(), id); err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(begin))
		if err := box.Forget(b.Context(), id); err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-us")
}

func BenchmarkPing(b *testing.B) {
	box := newBox(b, stem.Options{})
	for b.Loop() {
		if _, err := box.Ping(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
