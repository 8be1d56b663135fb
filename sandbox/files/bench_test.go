package files

import (
	"bytes"
	"context"
	"testing"
)

func BenchmarkStat(b *testing.B) {
	f := newFixture(b, nil, Limits{})
	f.put(b, "/a/b/c/file", "x")
	for b.Loop() {
		_, err := f.Stat(context.Background(), "/a/b/c/file", true)
		must(b, err)
	}
}

func BenchmarkWrite4K(b *testing.B) {
	f := newFixture(b, nil, Limits{})
	data := bytes.Repeat([]byte("x"), 4096)
	for b.Loop() {
		_, err := f.Write(context.Background(), "/file", bytes.NewReader(data), WriteOptions{})
		must(b, err)
	}
}
