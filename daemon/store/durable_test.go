package store

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"cairn/sandbox"
)

// writerEnv makes the test binary a process that commits to the database named.
const writerEnv = "CAIRN_STORE_TEST_WRITER"

// writeUntilKilled commits layer and event n, then says n, for n = 1, 2, ...
func writeUntilKilled(path string) {
	ctx := context.Background()
	s, err := Open(ctx, path, Options{LogBytes: 64 << 10})
	if err != nil {
		panic(err)
	}
	if _, _, err := s.Reserve(ctx, "POST /v1/sandboxes", "pending", "h"); err != nil {
		panic(err)
	}
	for n := 1; ; n++ {
		err := s.Update(ctx, func(tx sandbox.Tx) error {
			if err := tx.PutLayer(sandbox.Layer{ID: fmt.Sprint(n), Digest: strings.Repeat("x", 500)}); err != nil {
				return err
			}
			_, err := tx.AppendEvent(sandbox.Event{Subject: fmt.Sprint(n)})
			return err
		})
		if err != nil {
			panic(err)
		}
		if n%50 == 0 {
			if err := s.Sync(ctx); err != nil {
				panic(err)
			}
		}
		fmt.Println(n)
	}
}

func TestKilledProcessLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cairn.db")
	said := int64(0)
	for round := range 5 {
		os.Remove(path)
		os.Remove(path + "-wal")
		os.Remove(path + "-shm")
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), writerEnv+"="+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if said, err = strconv.ParseInt(lines.Text(), 10, 64); err != nil {
				t.Fatal(err)
			}
			if said == int64(100+97*round) {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the writer ended by itself")
		}

		s := open(t, path, Options{})
		view(t, s, func(tx sandbox.Tx) error {
			last, err := tx.LastEvent()
			if err != nil {
				return err
			}
			// The one that was committed but not yet said may be there too.
			if last != said && last != said+1 {
				t.Errorf("last event is %d, the writer had committed %d", last, said)
			}
			for n := int64(1); n <= last; n++ {
				if _, err := tx.Layer(fmt.Sprint(n)); err != nil {
					t.Errorf("layer %d: %v", n, err)
				}
			}
			if _, err := tx.Layer(fmt.Sprint(last + 1)); sandbox.CodeOf(err) != sandbox.CodeNotFound {
				t.Errorf("half a transaction is there: %v", err)
			}
			return nil
		})
		if _, fresh, err := s.Reserve(context.Background(), "POST /v1/sandboxes", "pending", "h"); err != nil || !fresh {
			t.Errorf("the killed process still holds its idempotency key (%v)", err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
