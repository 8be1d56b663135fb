package stem

import (
	"context"
	"errors"
	"fmt"

	"cairn/sandbox/stem/wire"

	"golang.org/x/sys/unix"
)

// Size of a terminal in characters.
type Size = wire.Size

// Resize changes the size of the terminal of a process started with TTY; its foreground
// processes get SIGWINCH when it differs. BadRequest: it has no terminal.
func (c *Client) Resize(ctx context.Context, id string, size Size) error {
	const op = "resize"
	if err := checkID(op, id); err != nil {
		return err
	}
	_, err := c.call(ctx, op, wire.KindResize, wire.Resize{ID: id, Size: size}.Append(nil))
	return err
}

// block is what a file system frees at a time, in bytes, or a multiple of it.
const block = 64 << 10

// WaitKeeping is Wait for a process at a terminal. Of its output it keeps the last keep
// bytes and at most a quarter more: older output is cut out of the file, where it reads as
// zeros from then on and takes no room; offsets stay as they are. Where the file system
// can't do that it is WaitBounded.
func (c *Client) WaitKeeping(ctx context.Context, id string, keep int64) (Exit, error) {
	if keep <= 0 {
		return c.WaitBounded(ctx, id, 0)
	}
	return c.wait(ctx, id, func(op string) error {
		err := c.trim(op, processPath(id, wire.FileStdout), keep)
		if errors.Is(err, unix.EOPNOTSUPP) {
			return c.checkOutput(op, id, keep)
		}
		return err
	})
}

// trim frees the beginning of a file that takes more room than keep and a quarter.
func (c *Client) trim(op, path string, keep int64) error {
	fd, err := c.open(op, path, unix.O_WRONLY, unix.S_IFREG)
	if errors.Is(err, NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &Error{Code: Internal, Op: op, Err: err}
	}
	const sector = 512
	cut := (st.Size - keep) / block * block
	if cut <= 0 || st.Blocks*sector <= keep+keep/4 {
		return nil
	}
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, cut); err != nil {
		return &Error{Code: Internal, Op: op, Err: fmt.Errorf("drop old output: %w", err)}
	}
	return nil
}

// OutputRange returns which bytes of a stream are kept: those from start up to end.
func (c *Client) OutputRange(id string, stream Stream) (start, end int64, err error) {
	const op = "output"
	if err := checkID(op, id); err != nil {
		return 0, 0, err
	}
	if stream != Stdout && stream != Stderr {
		return 0, 0, &Error{Code: BadRequest, Op: op, Err: fmt.Errorf("stream %q", stream)}
	}
	fd, err := c.open(op, processPath(id, string(stream)), unix.O_RDONLY, unix.S_IFREG)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(fd)
	if end, err = unix.Seek(fd, 0, unix.SEEK_END); err == nil && end > 0 {
		start, err = unix.Seek(fd, 0, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // nothing but a hole
			start, err = end, nil
		}
	}
	if err != nil {
		return 0, 0, &Error{Code: Internal, Op: op, Err: err}
	}
	return start, max(start, end), nil
}
