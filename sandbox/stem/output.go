package stem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cairn/sandbox/stem/wire"

	"golang.org/x/sys/unix"
)

// Stream is one of a process's outputs.
type Stream string

// The two streams.
const (
	Stdout Stream = wire.FileStdout
	Stderr Stream = wire.FileStderr
)

const (
	// followChunk is the most that Follow hands over at a time, in bytes.
	followChunk = 64 << 10
	// safetyTick is how often Wait and Follow look without having been woken.
	safetyTick = time.Second
)

// Exit is how a process ended, by the word of its sandbox.
type Exit struct {
	Code        int  // exit code, 0..255; 0 when Signal is set or Lost
	Signal      int  // signal that killed it, or 0
	Lost        bool // it ended while nobody in the sandbox was there to see how
	StartedAt   time.Time
	FinishedAt  time.Time
	MaxRSSBytes int64
	UserTime    time.Duration
	SystemTime  time.Duration
}

// Exit returns how a process ended, or a Busy error while it runs. NotFound: there is no
// such process.
func (c *Client) Exit(id string) (Exit, error) {
	const op = "exit"
	if err := checkID(op, id); err != nil {
		return Exit{}, err
	}
	if c.isSuspended(id) {
		return Exit{}, &Error{Code: Busy, Op: op, Err: fmt.Errorf("%s is being restored", id)}
	}
	text, err := c.readRecord(op, processPath(id, wire.FileStatus))
	if errors.Is(err, NotFound) {
		fd, derr := c.openDir(op, wire.DirProcess+"/"+id)
		if derr != nil {
			return Exit{}, derr
		}
		unix.Close(fd)
		return Exit{}, &Error{Code: Busy, Op: op, Err: fmt.Errorf("%s has not ended", id)}
	}
	if err != nil {
		return Exit{}, err
	}
	s, err := wire.ParseStatus(text)
	if err != nil {
		return Exit{}, &Error{Code: Tampered, Op: op, Err: fmt.Errorf("status of %s: %w", id, err)}
	}
	e := Exit{
		Lost:        s.How == wire.Lost,
		StartedAt:   time.UnixMicro(s.StartedUS),
		FinishedAt:  time.UnixMicro(s.FinishedUS),
		MaxRSSBytes: s.MaxRSSBytes,
		UserTime:    micros(s.UserUS),
		SystemTime:  micros(s.SystemUS),
	}
	switch s.How {
	case wire.Exited:
		e.Code = s.Value
	case wire.Signaled:
		e.Signal = s.Value
	case wire.Lost:
	}
	return e, nil
}

// micros clamps what would overflow: the number is the sandbox's.
func micros(us int64) time.Duration {
	return time.Duration(min(us, int64(1<<63-1)/1000)) * time.Microsecond
}

// Output reads at most limit bytes of a stream from offset on. next is the offset after them; eof
// reports that the process has ended and this was all. Background processes that it left
// behind may still write to the stream.
func (c *Client) Output(id string, stream Stream, offset int64, limit int) (data []byte, eof bool, next int64, err error) {
	// Most outputs are small, and the limit is not: the buffer grows with what there is.
	const first = 4 << 10
	buf := make([]byte, min(max(limit, 0), first))
	n := 0
	for {
		var m int
		m, eof, err = c.output("output", id, stream, offset+int64(n), buf[n:])
		n += m
		if err != nil || n < len(buf) || len(buf) >= limit {
			return buf[:n], eof, offset + int64(n), err
		}
		buf = append(buf, make([]byte, min(len(buf), limit-len(buf)))...)
	}
}

func (c *Client) output(op, id string, stream Stream, offset int64, buf []byte) (n int, eof bool, err error) {
	if err := checkID(op, id); err != nil {
		return 0, false, err
	}
	if stream != Stdout && stream != Stderr || offset < 0 {
		return 0, false, &Error{Code: BadRequest, Op: op, Err: fmt.Errorf("stream %q at %d", stream, offset)}
	}
	// In this order: what the process wrote before it ended is then seen.
	_, err = c.Exit(id)
	ended := err == nil
	if err != nil && !errors.Is(err, Busy) {
		return 0, false, err
	}
	fd, err := c.open(op, processPath(id, string(stream)), unix.O_RDONLY, unix.S_IFREG)
	if errors.Is(err, NotFound) && !ended {
		return 0, false, nil // about to be started
	}
	if err != nil {
		return 0, false, err
	}
	defer unix.Close(fd)
	n, err = pread(fd, buf, offset)
	if err != nil {
		return n, false, &Error{Code: Internal, Op: op, Err: err}
	}
	return n, ended && n < len(buf), nil
}

// Wait returns how a process ended, once it has. With Options.MaxOutput it returns
// an OutputLimit error instead when a stream has grown beyond it; the process still runs.
// A cancelled context's cause is returned as it is.
func (c *Client) Wait(ctx context.Context, id string) (Exit, error) {
	return c.WaitBounded(ctx, id, c.opts.MaxOutput)
}

// WaitBounded is Wait with a bound of its own in place of Options.MaxOutput; 0 is none.
func (c *Client) WaitBounded(ctx context.Context, id string, maxOutput int64) (Exit, error) {
	return c.wait(ctx, id, func(op string) error { return c.checkOutput(op, id, maxOutput) })
}

// wait waits for the end of a process and calls each after each look before it.
func (c *Client) wait(ctx context.Context, id string, each func(op string) error) (Exit, error) {
	const op = "wait"
	var exit Exit
	err := c.watch(ctx, op, id, func() (bool, error) {
		e, err := c.Exit(id)
		if err == nil {
			exit = e
			return true, nil
		}
		if !errors.Is(err, Busy) {
			return false, err
		}
		return false, each(op)
	})
	return exit, err
}

func (c *Client) checkOutput(op, id string, maxOutput int64) error {
	if maxOutput <= 0 {
		return nil
	}
	for _, stream := range []Stream{Stdout, Stderr} {
		fd, err := c.open(op, processPath(id, string(stream)), unix.O_PATH, unix.S_IFREG)
		if errors.Is(err, NotFound) {
			continue
		}
		if err != nil {
			return err
		}
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		unix.Close(fd)
		if err != nil {
			return &Error{Code: Internal, Op: op, Err: err}
		}
		if st.Size > maxOutput {
			return outputLimit(op, stream, maxOutput)
		}
	}
	return nil
}

func outputLimit(op string, stream Stream, limit int64) error {
	return &Error{Code: OutputLimit, Op: op, Err: fmt.Errorf("%s exceeds %d bytes", stream, limit)}
}

// Follow calls f with what a stream holds from offset on and with what is added, until the
// process has ended and all has been handed over. The slice is f's until it returns; an
// error of f ends Follow and is returned as it is. At Options.MaxOutput bytes from the
// stream's beginning it returns an OutputLimit error, having handed over that much.
func (c *Client) Follow(ctx context.Context, id string, stream Stream, offset int64, f func([]byte) error) error {
	const op = "follow"
	buf := make([]byte, followChunk)
	return c.watch(ctx, op, id, func() (bool, error) {
		for {
			if err := context.Cause(ctx); err != nil {
				return false, err
			}
			n, eof, err := c.output(op, id, stream, offset, buf)
			if err != nil {
				return false, err
			}
			over := false
			if limit := c.opts.MaxOutput; limit > 0 && offset+int64(n) > limit {
				n, over = int(max(limit-offset, 0)), true
			}
			if n > 0 {
				offset += int64(n)
				if err := f(buf[:n]); err != nil {
					return false, err
				}
			}
			if over {
				return false, outputLimit(op, stream, c.opts.MaxOutput)
			}
			if eof {
				return true, nil
			}
			if n < len(buf) {
				return false, nil
			}
		}
	})
}

// watch calls look, and again whenever the process's directory may have changed, until it
// reports that it is done or fails. The watch is set before the first look, so that no
// change falls between them.
func (c *Client) watch(ctx context.Context, op, id string, look func() (bool, error)) error {
	if err := checkID(op, id); err != nil {
		return err
	}
	fd, err := c.openDir(op, wire.DirProcess+"/"+id)
	if err != nil {
		return err
	}
	sub := c.opts.Watcher.subscribe(fd)
	unix.Close(fd)
	defer sub.close()
	tick := time.NewTicker(c.tick)
	defer tick.Stop()
	for {
		done, err := look()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-sub.C:
		case <-tick.C:
		}
	}
}
