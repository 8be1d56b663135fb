package criu_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"cairn/criu"
)

// BenchmarkRoundTrip dumps a Python program and restores it in place, with memory of its
// own on top of the interpreter's. CRIU waits in the sandbox before either begins, as an
// operation has other things to do first.
func BenchmarkRoundTrip(b *testing.B) {
	for _, megabytes := range []int{0, 50, 200} {
		b.Run(fmt.Sprintf("%dMB", megabytes), func(b *testing.B) {
			c := newCRIU(b, nil)
			x := newBox(b)
			id := x.start(b, "python3", "-u", "-c", fmt.Sprintf("import os, time\nx = bytearray(os.urandom(%d << 20))\nprint('ready')\nwhile True: time.sleep(0.1)", megabytes))
			x.says(b, id, "ready")
			var start, frozen, dump, clear, build, restore time.Duration
			for b.Loop() {
				dir, err := os.MkdirTemp("", "cb-img")
				check(b, err)
				images, err := os.Open(dir)
				check(b, err)
				p, err := c.PrepareDump(b.Context(), x.target(), images)
				check(b, err)
				begun := time.Now()
				s, err := p.Dump(b.Context(), criu.DumpOptions{LeaveRunning: true})
				check(b, err)
				dump += time.Since(begun)
				start += s.Start
				frozen += s.Freeze + s.Frozen
				begun = time.Now()
				x.clear(b, c)
				clear += time.Since(begun)
				begun = time.Now()
				r, err := c.Restore(b.Context(), x.target(), images, criu.RestoreOptions{})
				check(b, err)
				restore += time.Since(begun)
				build += r.Build
				x.release(b)
				check(b, images.Close())
				check(b, os.RemoveAll(dir))
			}
			for name, d := range map[string]time.Duration{"start": start, "frozen": frozen, "dump": dump, "clear": clear, "build": build, "restore": restore} {
				b.ReportMetric(float64(d.Microseconds())/1000/float64(b.N), name+"-ms")
			}
		})
	}
}
