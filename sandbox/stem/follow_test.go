package stem_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"cairn/sandbox/stem"
)

var errEnough = errors.New("seen enough")

// follow reads a process's output until it is at least want.
func follow(t testing.TB, b *box, id, want string) {
	t.Helper()
	var got bytes.Buffer
	err := b.Follow(t.Context(), id, stem.Stdout, 0, func(p []byte) error {
		got.Write(p)
		if strings.HasPrefix(got.String(), want) {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Fatalf("%v, output %q", err, got.String())
	}
}

func TestFollow(t *testing.T) {
	b := newBox(t, stem.Options{})
	id := b.start(t, "sh", "-c", `i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done`)
	var got bytes.Buffer
	check(t, b.Follow(t.Context(), id, stem.Stdout, 0, func(p []byte) error {
		got.Write(p)
		return nil
	}))
	if n := bytes.Count(got.Bytes(), []byte{'\n'}); n != 2000 || !strings.HasSuffix(got.String(), "line 1999\n") {
		t.Fatal(n)
	}
	var tail bytes.Buffer
	check(t, b.Follow(t.Context(), id, stem.Stdout, int64(got.Len()-3), func(p []byte) error {
		tail.Write(p)
		return nil
	}))
	if tail.String() != "99\n" {
		t.Fatalf("%q", tail.String())
	}
}

func TestFollowLive(t *testing.T) {
	b := newBox(t, stem.Options{})
	id := b.newID()
	_, err := b.Start(t.Context(), stem.Request{ID: id, Argv: []string{"cat"}, Pipe: true})
	check(t, err)
	for _, word := range []string{"one ", "two ", "three"} {
		n, err := b.WriteStdin(t.Context(), id, []byte(word))
		if err != nil || n != len(word) {
			t.Fatal(n, err)
		}
	}
	follow(t, b, id, "one two three")
	check(t, b.CloseStdin(t.Context(), id))
	exit, err := b.Wait(t.Context(), id)
	if err != nil || exit.Code != 0 {
		t.Fatal(exit, err)
	}
	if _, err := b.WriteStdin(t.Context(), id, []byte("more")); !errors.Is(err, stem.NotRunning) {
		t.Fatal(err)
	}
}

func TestPipeLargerThanItsBuffer(t *testing.T) {
	b := newBox(t, stem.Options{})
	id := b.newID()
	_, err := b.Start(t.Context(), stem.Request{ID: id, Argv: []string{"sh", "-c", "sleep 0.5; md5sum"}, Pipe: true})
	check(t, err)
	data := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	n, err := b.WriteStdin(t.Context(), id, data)
	if err != nil || n != len(data) {
		t.Fatal(n, err)
	}
	check(t, b.CloseStdin(t.Context(), id))
	follow(t, b, id, fmt.Sprintf("%x  -\n", md5.Sum(data)))
}

func TestPipeNobodyReads(t *testing.T) {
	b := newBox(t, stem.Options{})
	id := b.newID()
	_, err := b.Start(t.Context(), stem.Request{ID: id, Argv: []string{"sh", "-c", "exec <&-; echo closed; sleep 1000"}, Pipe: true})
	check(t, err)
	follow(t, b, id, "closed\n")
	if _, err := b.WriteStdin(t.Context(), id, []byte("x")); !errors.Is(err, stem.NotRunning) {
		t.Fatal(err)
	}
}

func TestWaitCancelled(t *testing.T) {
	b := newBox(t, stem.Options{})
	id := b.start(t, "sleep", "1000")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errEnough)
	if _, err := b.Wait(ctx, id); !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	if _, err := b.Exit(id); !errors.Is(err, stem.Busy) {
		t.Fatal(err)
	}
}

func TestWaitForForgotten(t *testing.T) {
	b := newBox(t, stem.Options{})
	if _, err := b.Wait(t.Context(), "exec_unknown"); !errors.Is(err, stem.NotFound) {
		t.Fatal(err)
	}
	id := b.start(t, "sleep", "1000")
	if err := b.Forget(t.Context(), id); !errors.Is(err, stem.Busy) {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := b.Wait(t.Context(), id)
		ended <- err
	}()
	b.sh(t, "rm -r /run/cairn/p/"+id)
	if err := <-ended; !errors.Is(err, stem.NotFound) {
		t.Fatal(err)
	}
}

func TestOutputWithoutEnd(t *testing.T) {
	b := newBox(t, stem.Options{MaxOutput: 1 << 20})
	id := b.start(t, "yes")
	var total int
	err := b.Follow(t.Context(), id, stem.Stdout, 0, func(p []byte) error {
		total += len(p)
		return nil
	})
	if !errors.Is(err, stem.OutputLimit) || total != 1<<20 {
		t.Fatal(err, total)
	}
	if _, err := b.Wait(t.Context(), id); !errors.Is(err, stem.OutputLimit) {
		t.Fatal(err)
	}
	check(t, b.Signal(t.Context(), id, syscall.SIGKILL, true))
}
