package main

import (
	"math"
	"slices"
	"time"
)

// series is repeated measurements of one thing, in milliseconds unless its row
// says otherwise.
type series []float64

func (s *series) add(v float64) { *s = append(*s, v) }

// time measures one call of f.
func (s *series) time(f func() error) error {
	began := time.Now()
	err := f()
	if err == nil {
		s.add(ms(time.Since(began)))
	}
	return err
}

// quantile is the value that a share q of all are not above; NaN without any.
func (s series) quantile(q float64) float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s))
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[max(0, i)]
}

func (s series) p50() float64 { return s.quantile(0.50) }
func (s series) p99() float64 { return s.quantile(0.99) }
func (s series) max() float64 { return s.quantile(1) }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
