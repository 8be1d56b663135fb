package pages

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// suffix is that of the names of compressed files.
const suffix = ".zst"

// level is zstd's effort.
const level = zstd.SpeedFastest

// isPages says whether a file of that name holds memory.
func isPages(name string) bool {
	return strings.HasPrefix(name, "pages-") && strings.HasSuffix(name, ".img")
}

// inode tells files apart whatever their names.
type inode struct{ dev, ino uint64 }

func inodeOf(dir *os.File, name string) (inode, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return inode{}, fmt.Errorf("look at %s: %w", name, err)
	}
	return inode{st.Dev, st.Ino}, nil
}

// place is a file that was made.
type place struct {
	dir  *os.File
	name string
}

// Compress fills dst, an empty directory, with what src has, and memory compressed: each
// pages-N.img is a pages-N.img.zst. dst can't be restored from; Expand makes what can.
// src is a dump, or what Compact has made of one. When it is Based, base is the base,
// compressed, and dst shares its files, if they are still the same; with nil it has all
// compressed files to itself. Other files are hard links. Nothing is synced. On an error
// dst holds what is worth nothing. Uses GOMAXPROCS threads, and some MB for each.
func Compress(ctx context.Context, src, base, dst *os.File) error {
	if err := empty(dst); err != nil {
		return err
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithEncoderCRC(true), zstd.WithWindowSize(chunkSize))
	if err != nil {
		return fmt.Errorf("make an encoder: %w", err)
	}
	defer enc.Close()
	dec, err := newDecoder()
	if err != nil {
		return err
	}
	defer dec.Close()
	t := &transfer{ctx: ctx, done: map[inode]place{}}
	defer t.close()
	t.file = func(src, base *os.File, name string, dst *os.File) (string, error) {
		if !isPages(name) {
			_, err := link(ctx, src, name, dst, name)
			return "", err
		}
		to := name + suffix
		if base != nil {
			same, err := holds(ctx, dec, base, to, src, name)
			if err != nil {
				return "", fmt.Errorf("base: %w", err)
			}
			if same {
				_, err := link(ctx, base, to, dst, to)
				return to, err
			}
		}
		return to, compress(ctx, enc, src, name, dst, to)
	}
	return t.run(src, nil, base, dst, 1)
}

// Expand fills dst, an empty directory, with what Compress had as its src. Damaged files
// are a *FormatError. On an error dst holds what is worth nothing. Uses GOMAXPROCS threads.
func Expand(ctx context.Context, src, dst *os.File) error {
	if err := empty(dst); err != nil {
		return err
	}
	dec, err := newDecoder()
	if err != nil {
		return err
	}
	defer dec.Close()
	t := &transfer{ctx: ctx, done: map[inode]place{}}
	defer t.close()
	t.file = func(src, _ *os.File, name string, dst *os.File) (string, error) {
		to, ok := strings.CutSuffix(name, suffix)
		if !ok || !isPages(to) {
			_, err := link(ctx, src, name, dst, name)
			return "", err
		}
		return to, expand(ctx, dec, src, name, dst, to)
	}
	return t.run(src, nil, nil, dst, 1)
}

// transfer makes one directory of another one, with those below it.
type transfer struct {
	ctx  context.Context
	done map[inode]place // what was made of a file that has several names
	open []*os.File
	// file makes a file; it returns the name if it is to be found again.
	file func(src, base *os.File, name string, dst *os.File) (string, error)
}

func (t *transfer) close() {
	for _, f := range t.open {
		f.Close()
	}
}

// run makes dst of src. base, the compressed base, is what src's parent was made of: it
// is nil or of no use for src itself.
func (t *transfer) run(src, as, base, dst *os.File, depth int) error {
	if depth > maxDepth {
		return &FormatError{File: parentDir, Message: "too many directories on top of each other"}
	}
	names, parent, err := list(src)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := context.Cause(t.ctx); err != nil {
			return err
		}
		id, err := inodeOf(src, name)
		if err != nil {
			return err
		}
		if p, ok := t.done[id]; ok {
			if _, err := link(t.ctx, p.dir, p.name, dst, p.name); err != nil {
				return err
			}
			continue
		}
		made, err := t.file(src, as, name, dst)
		if err != nil {
			return err
		}
		if made != "" {
			t.done[id] = place{dst, made}
		}
	}
	if !parent {
		return nil
	}
	up, err := openDir(src, parentDir)
	if err != nil {
		return err
	}
	defer up.Close()
	to, err := makeDir(dst, parentDir)
	if err != nil {
		return err
	}
	t.open = append(t.open, to)
	var next *os.File
	if base != nil {
		next, err = openDir(base, parentDir)
		if errors.Is(err, fs.ErrNotExist) {
			next, err = nil, nil
		}
		if err != nil {
			return err
		}
		if next != nil {
			t.open = append(t.open, next)
		}
	}
	return t.run(up, base, next, to, depth+1)
}

// compress makes a compressed file of one of memory.
func compress(ctx context.Context, enc *zstd.Encoder, src *os.File, name string, dst *os.File, to string) (err error) {
	in, err := open(src, name)
	if err != nil {
		return err
	}
	defer in.Close()
	fi, err := in.Stat()
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	out, err := create(dst, to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	// Chunks are compressed side by side and written in their order.
	type result struct {
		raw, b []byte
	}
	n := runtime.GOMAXPROCS(0)
	slots := make([]result, n)
	for i := range slots {
		slots[i] = result{make([]byte, chunkSize), nil}
	}
	var table []byte
	frames := uint32(0)
	for off := int64(0); off < fi.Size(); {
		g, gctx := errgroup.WithContext(ctx)
		used := 0
		for ; used < n && off < fi.Size(); used++ {
			s, at := &slots[used], off
			s.raw = s.raw[:min(chunkSize, fi.Size()-off)]
			off += int64(len(s.raw))
			g.Go(func() error {
				if err := context.Cause(gctx); err != nil {
					return err
				}
				if err := readAt(in, s.raw, at); err != nil {
					return err
				}
				s.b = enc.EncodeAll(s.raw, s.b[:0])
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		for _, s := range slots[:used] {
			if _, err := out.Write(s.b); err != nil {
				return fmt.Errorf("write %s: %w", to, err)
			}
			table = binary.LittleEndian.AppendUint32(table, uint32(len(s.b)))
			table = binary.LittleEndian.AppendUint32(table, uint32(len(s.raw)))
			frames++
		}
	}
	if _, err := out.Write(seekTable(table, frames)); err != nil {
		return fmt.Errorf("write %s: %w", to, err)
	}
	return nil
}

// holds says whether a compressed file in base has the content of a file.
func holds(ctx context.Context, dec *zstd.Decoder, base *os.File, packed string, src *os.File, name string) (bool, error) {
	p, err := openPacked(base, packed)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer p.f.Close()
	in, err := open(src, name)
	if err != nil {
		return false, err
	}
	defer in.Close()
	fi, err := in.Stat()
	if err != nil {
		return false, fmt.Errorf("open %s: %w", name, err)
	}
	if fi.Size() != p.size {
		return false, nil
	}
	errDiffers := errors.New("differs")
	err = p.each(ctx, dec, func(b []byte, off int64) error {
		is := make([]byte, len(b))
		if err := readAt(in, is, off); err != nil {
			return err
		}
		if !bytes.Equal(b, is) {
			return errDiffers
		}
		return nil
	})
	if errors.Is(err, errDiffers) {
		return false, nil
	}
	return err == nil, err
}
