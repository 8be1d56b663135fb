package overlay

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkCapture says for how long processes have to stand still (freeze),
// and how long a capture takes in all, depending on how many of an upper's
// files change between the copy that is made while they run and the freeze.
func BenchmarkCapture(b *testing.B) {
	for fs, pool := range map[string]func(testing.TB) *Pool{"ext4": newPool, "xfs": newXFSPool} {
		for _, n := range []int{100, 10000, 100000} {
			b.Run(fmt.Sprintf("%s/files=%d", fs, n), func(b *testing.B) {
				p := pool(b)
				manyFiles(b, p, "u", n)
				for _, percent := range []int{0, 1, 100} {
					b.Run(fmt.Sprintf("changed=%d", percent), func(b *testing.B) { benchmarkCapture(b, p, n, percent, "") })
				}
				if _, err := p.Capture(context.Background(), "u", "prev", ""); err != nil {
					b.Fatal(err)
				}
				for _, percent := range []int{0, 1} {
					b.Run(fmt.Sprintf("again/changed=%d", percent), func(b *testing.B) { benchmarkCapture(b, p, n, percent, "prev") })
				}
			})
		}
	}
}

func benchmarkCapture(b *testing.B, p *Pool, n, percent int, previous string) {
	ctx := context.Background()
	var frozen, total time.Duration
	data := make([]byte, 1024)
	for range b.N {
		data[0]++
		start := time.Now()
		c, err := p.StartCapture(ctx, "u", "c", previous)
		if err != nil {
			b.Fatal(err)
		}
		total += time.Since(start)
		for i := range n * percent / 100 {
			path := filepath.Join(p.LayerPath("u"), fmt.Sprintf("d%d", i/100), fmt.Sprint(i))
			if err := os.WriteFile(path, data, 0o644); err != nil {
				b.Fatal(err)
			}
		}
		start = time.Now()
		if _, err := c.Finish(ctx); err != nil {
			b.Fatal(err)
		}
		frozen += time.Since(start)
		if _, err := c.Commit(ctx); err != nil {
			b.Fatal(err)
		}
		total += time.Since(start)
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
		if err := p.Remove(ctx, "c"); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(frozen.Microseconds())/float64(b.N)/1e3, "freeze-ms")
	b.ReportMetric(float64(total.Microseconds())/float64(b.N)/1e3, "total-ms")
	b.ReportMetric(0, "ns/op")
}
