package store

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"cairn/sandbox"
)

// BenchmarkCheckpoint is what one checkpoint of a sandbox writes.
func BenchmarkCheckpoint(b *testing.B) {
	for _, depth := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			s := temp(b, Options{})
			sb := sandbox.Sandbox{
				ID: "sbx_1", Name: "one", State: sandbox.StateRunning, ImageID: "img_1", CreatedAt: at(0),
				Labels: map[string]string{"a": "b"}, Config: sandbox.Config{Env: map[string]string{"PATH": "/bin"}},
			}
			for i := range depth {
				sb.Base = append(sb.Base, fmt.Sprintf("l01HZZZZZZZZZZZZZZZZZZ%04d", i))
			}
			update(b, s, func(tx sandbox.Tx) error { return tx.PutSandbox(sb) })
			took := make([]time.Duration, 0, b.N)
			b.ResetTimer()
			for i := range b.N {
				start := time.Now()
				id := fmt.Sprintf("ckpt_%08d", i)
				err := s.Update(context.Background(), func(tx sandbox.Tx) error {
					sb, err := tx.Sandbox("sbx_1")
					if err != nil {
						return err
					}
					if err := tx.PutCheckpoint(sandbox.Checkpoint{
						ID: id, SandboxID: sb.ID, ImageID: sb.ImageID, Parent: sb.Head, Labels: sb.Labels, Config: sb.Config,
						Stack: sb.Base, Layer: "l" + id, CreatedAt: at(i),
					}); err != nil {
						return err
					}
					sb.Head = id
					if err := tx.PutSandbox(sb); err != nil {
						return err
					}
					if err := tx.PutLayer(sandbox.Layer{ID: "l" + id, CreatedAt: at(i)}); err != nil {
						return err
					}
					_, err = tx.AppendEvent(sandbox.Event{Type: "checkpoint.created", Sandbox: sb.ID, Subject: id, Time: at(i)})
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
		})
	}
}

func BenchmarkGet(b *testing.B) {
	s := temp(b, Options{})
	update(b, s, func(tx sandbox.Tx) error {
		return tx.PutSandbox(sandbox.Sandbox{ID: "sbx_1", Name: "one", CreatedAt: at(0)})
	})
	for b.Loop() {
		view(b, s, func(tx sandbox.Tx) error {
			_, err := tx.Sandbox("one")
			return err
		})
	}
}

func BenchmarkSync(b *testing.B) {
	s := temp(b, Options{})
	i := 0
	for b.Loop() {
		i++
		update(b, s, func(tx sandbox.Tx) error {
			return tx.PutLayer(sandbox.Layer{ID: fmt.Sprint(i), CreatedAt: at(i)})
		})
		if err := s.Sync(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLayersInUse reads the references of 10,000 checkpoints with 16 layers each.
func BenchmarkLayersInUse(b *testing.B) {
	s := temp(b, Options{})
	update(b, s, func(tx sandbox.Tx) error {
		for i := range 10_000 {
			c := sandbox.Checkpoint{ID: fmt.Sprintf("ckpt_%d", i), CreatedAt: at(i)}
			for j := range 16 {
				c.Stack = append(c.Stack, fmt.Sprintf("l01HZZZZZZZZZZZZZZZZZZ%06d", i+j))
			}
			if err := tx.PutCheckpoint(c); err != nil {
				return err
			}
		}
		return nil
	})
	for b.Loop() {
		view(b, s, func(tx sandbox.Tx) error {
			_, err := tx.LayersInUse()
			return err
		})
	}
}
