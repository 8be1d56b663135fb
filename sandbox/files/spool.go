package files

import (
	"context"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Spool copies src, max bytes at most, into a nameless file in the host directory
// dir and returns it, positioned at its start. It lets a slow client's data
// arrive before a sandbox is locked for the write. Closing the file frees it.
// Errors: ErrTooLarge, ErrSource, ErrNoSpace.
func Spool(ctx context.Context, dir string, src io.Reader, max int64) (*os.File, error) {
	n, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fail("spool", dir, err)
	}
	f := &newFile{f: os.NewFile(uintptr(n), "spool")}
	if err := f.fill(ctx, src, max); err != nil {
		f.discard()
		return nil, fail("spool", dir, err)
	}
	return f.f, nil
}
