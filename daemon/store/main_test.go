package store

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cairn/sandbox"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(writerEnv); path != "" {
		writeUntilKilled(path)
	}
	goleak.VerifyTestMain(m)
}

func open(t testing.TB, path string, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func temp(t testing.TB, o Options) *Store {
	t.Helper()
	return open(t, filepath.Join(t.TempDir(), "cairn.db"), o)
}

func update(t testing.TB, s *Store, fn func(sandbox.Tx) error) {
	t.Helper()
	if err := s.Update(context.Background(), fn); err != nil {
		t.Fatal(err)
	}
}

func view(t testing.TB, s *Store, fn func(sandbox.Tx) error) {
	t.Helper()
	if err := s.View(context.Background(), fn); err != nil {
		t.Fatal(err)
	}
}

func wantCode(t testing.TB, err error, want sandbox.Code) {
	t.Helper()
	if got := sandbox.CodeOf(err); got != want {
		t.Fatalf("got code %q (%v), want %q", got, err, want)
	}
}

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)

func at(n int) time.Time { return epoch.Add(time.Duration(n) * time.Second) }
