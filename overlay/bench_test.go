package overlay

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// BenchmarkAttach switches a container between uppers at several depths and
// says where the time goes, as medians.
func BenchmarkAttach(b *testing.B) {
	for _, depth := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			p := newPool(b)
			var layers []string
			for i := range depth {
				layers = append(layers, write(b, p, fmt.Sprintf("l%d", i), create(fmt.Sprintf("f%d", i), "x")))
			}
			c := startContainer(b, p, 200000)
			uppers := make([]string, 256)
			for i := range uppers {
				uppers[i] = fresh(b, p, fmt.Sprintf("u%d", i))
			}
			var m, k, s []time.Duration
			b.ResetTimer()
			for i := range b.N {
				r, err := p.Attach(context.Background(), c.target(), Stack{Upper: uppers[i%len(uppers)], Layers: layers})
				if err != nil {
					b.Fatal(err)
				}
				m, k, s = append(m, r.Timings.IDMap), append(k, r.Timings.Create), append(s, r.Timings.Switch)
				b.StopTimer()
				if err := r.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			for name, d := range map[string][]time.Duration{"idmap": m, "create": k, "switch": s} {
				slices.Sort(d)
				b.ReportMetric(float64(d[len(d)/2].Nanoseconds())/1e3, name+"-p50-us")
			}
		})
	}
}

// manyFiles makes a layer of n files of 1 KiB, 100 to a directory.
func manyFiles(b *testing.B, p *Pool, id string, n int) string {
	b.Helper()
	fresh(b, p, id)
	data := make([]byte, 1024)
	for i := range n {
		dir := filepath.Join(p.LayerPath(id), fmt.Sprintf("d%d", i/100))
		if i%100 == 0 {
			if err := os.Mkdir(dir, 0o755); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), data, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	return id
}

func BenchmarkFiles(b *testing.B) {
	ctx := context.Background()
	for _, n := range []int{100, 10000} {
		p := newPool(b)
		src := manyFiles(b, p, "src", n)
		if _, err := p.Capture(ctx, src, "prev", ""); err != nil {
			b.Fatal(err)
		}
		for name, f := range map[string]func(dst string) error{
			"capture":       func(dst string) error { _, err := p.Capture(ctx, src, dst, ""); return err },
			"capture-again": func(dst string) error { _, err := p.Capture(ctx, src, dst, "prev"); return err },
			"squash":        func(dst string) error { return p.Squash(ctx, dst, []string{src}, nil) },
			"seal":          func(string) error { _, err := p.Seal(ctx, src); return err },
			"empty":         func(string) error { _, err := p.Empty(src); return err },
		} {
			b.Run(fmt.Sprintf("%s/files=%d", name, n), func(b *testing.B) {
				for i := range b.N {
					dst := fmt.Sprintf("%s-%d-%d", name, b.N, i)
					if err := f(dst); err != nil {
						b.Fatal(err)
					}
					b.StopTimer()
					if err := p.Remove(ctx, dst); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
			})
		}
	}
}
