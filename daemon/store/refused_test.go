package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cairn/sandbox"
)

func TestRefusedFiles(t *testing.T) {
	ctx := context.Background()
	fill := func(t *testing.T, path string) {
		s := open(t, path, Options{})
		update(t, s, func(tx sandbox.Tx) error {
			for i := range 500 {
				if err := tx.PutSandbox(sandbox.Sandbox{ID: fmt.Sprint(i), Name: fmt.Sprint(i), CreatedAt: at(i)}); err != nil {
					return err
				}
			}
			return nil
		})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, damage := range map[string]func(t *testing.T, path string){
		"garbage": func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"a page overwritten": func(t *testing.T, path string) {
			fill(t, path)
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for page := int64(3); page < 40; page++ {
				if _, err := f.WriteAt([]byte(strings.Repeat("\xff", 200)), page*4096); err != nil {
					t.Fatal(err)
				}
			}
		},
		"cut": func(t *testing.T, path string) {
			fill(t, path)
			if err := os.Truncate(path, size(path)/2); err != nil {
				t.Fatal(err)
			}
		},
		"another program's": func(t *testing.T, path string) {
			fill(t, path)
			sqlExec(t, path, "PRAGMA application_id = 5")
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "cairn.db")
			damage(t, path)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Open(ctx, path, Options{})
			var corrupt *CorruptError
			if !errors.As(err, &corrupt) || !strings.Contains(err.Error(), path) {
				t.Fatalf("got %v", err)
			}
			if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
				t.Error("the refused file was changed")
			}
		})
	}
	t.Run("newer", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "cairn.db")
		fill(t, path)
		sqlExec(t, path, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, 1)")
		_, err := Open(ctx, path, Options{})
		var newer *NewerError
		if !errors.As(err, &newer) || newer.Has != 999 {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("no directory", func(t *testing.T) {
		if _, err := Open(ctx, filepath.Join(t.TempDir(), "none", "cairn.db"), Options{}); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("got %v", err)
		}
	})
}
