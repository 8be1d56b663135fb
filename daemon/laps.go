package daemon

import "time"

// laps are what an operation consists of, for the log.
type laps struct {
	last  time.Time
	attrs []any
}

func newLaps() *laps { return &laps{last: time.Now()} }

// lap says what was done since the last one.
func (l *laps) lap(name string) {
	now := time.Now()
	l.add(name, now.Sub(l.last))
	l.last = now
}

// add says how long something took that was timed elsewhere.
func (l *laps) add(name string, took time.Duration) { l.attrs = append(l.attrs, name, took) }
