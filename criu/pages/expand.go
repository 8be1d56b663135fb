package pages

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
)

// The seekable format of zstd (contrib/seekable_format of its source): frames, and their
// sizes in a frame at the end that decoders skip.
const (
	skippable   = 0x184D2A5E
	seekable    = 0x8F92EAB1
	tableHead   = 8
	tableEntry  = 8
	tableFooter = 9
)

// seekTable is the last frame.
func seekTable(entries []byte, frames uint32) []byte {
	var b []byte
	b = binary.LittleEndian.AppendUint32(b, skippable)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(entries)+tableFooter))
	b = append(b, entries...)
	b = binary.LittleEndian.AppendUint32(b, frames)
	b = append(b, 0) // no checksums here: frames have their own
	return binary.LittleEndian.AppendUint32(b, seekable)
}

// frame is a compressed chunk.
type frame struct {
	off, rawOff int64
	size, raw   uint32
}

// packed is an open compressed file.
type packed struct {
	f      *os.File
	size   int64 // of what was compressed
	frames []frame
}

// openPacked opens a compressed file and reads its table.
func openPacked(dir *os.File, name string) (_ *packed, err error) {
	f, err := open(dir, name)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	p, err := parseTable(f, fi.Size())
	if err != nil {
		return nil, err
	}
	p.f = f
	return p, nil
}

func parseTable(f interface {
	Name() string
	ReadAt(b []byte, off int64) (int, error)
}, size int64,
) (*packed, error) {
	bad := func(message string) error { return &FormatError{File: f.Name(), Message: message} }
	var foot [tableFooter]byte
	if size < tableHead+tableFooter {
		return nil, bad("too short")
	}
	if _, err := f.ReadAt(foot[:], size-tableFooter); err != nil {
		return nil, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	n := int64(binary.LittleEndian.Uint32(foot[:]))
	if binary.LittleEndian.Uint32(foot[5:]) != seekable || foot[4] != 0 {
		return nil, bad("no table of frames")
	}
	if n > (size-tableHead-tableFooter)/tableEntry {
		return nil, bad(fmt.Sprintf("%d frames", n))
	}
	table := make([]byte, tableHead+n*tableEntry)
	begin := size - tableFooter - int64(len(table))
	if _, err := f.ReadAt(table, begin); err != nil {
		return nil, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	if binary.LittleEndian.Uint32(table) != skippable || int64(binary.LittleEndian.Uint32(table[4:])) != n*tableEntry+tableFooter {
		return nil, bad("malformed table of frames")
	}
	p := &packed{frames: make([]frame, 0, n)}
	var off int64
	for b := table[tableHead:]; len(b) > 0; b = b[tableEntry:] {
		fr := frame{off: off, rawOff: p.size, size: binary.LittleEndian.Uint32(b), raw: binary.LittleEndian.Uint32(b[4:])}
		if fr.raw == 0 || fr.raw > chunkSize || fr.size > 2*chunkSize {
			return nil, bad("a frame of a wrong size")
		}
		off, p.size = off+int64(fr.size), p.size+int64(fr.raw)
		p.frames = append(p.frames, fr)
	}
	if off != begin {
		return nil, bad("the table of frames is wrong")
	}
	return p, nil
}

// newDecoder makes a decoder for frames, of which several may be decoded at once.
func newDecoder() (*zstd.Decoder, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(2*chunkSize))
	if err != nil {
		return nil, fmt.Errorf("make a decoder: %w", err)
	}
	return d, nil
}

// each calls fn for every chunk, from several goroutines.
func (p *packed) each(ctx context.Context, dec *zstd.Decoder, fn func(b []byte, off int64) error) error {
	g, ctx := errgroup.WithContext(ctx)
	next := make(chan frame)
	g.Go(func() error {
		defer close(next)
		for _, fr := range p.frames {
			select {
			case next <- fr:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	for range min(runtime.GOMAXPROCS(0), len(p.frames)) {
		g.Go(func() error {
			in, out := make([]byte, 0, chunkSize), make([]byte, 0, chunkSize)
			for fr := range next {
				if cap(in) < int(fr.size) {
					in = make([]byte, fr.size)
				}
				in = in[:fr.size]
				if err := readAt(p.f, in, fr.off); err != nil {
					return err
				}
				b, err := dec.DecodeAll(in, out[:0])
				if err != nil || len(b) != int(fr.raw) {
					return errors.Join(&FormatError{File: p.f.Name(), Message: fmt.Sprintf("a damaged frame at %d", fr.off)}, err)
				}
				if err := fn(b, fr.rawOff); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// expand makes a file of memory of a compressed one.
func expand(ctx context.Context, dec *zstd.Decoder, src *os.File, name string, dst *os.File, to string) (err error) {
	p, err := openPacked(src, name)
	if err != nil {
		return err
	}
	defer p.f.Close()
	out, err := create(dst, to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	return p.each(ctx, dec, func(b []byte, off int64) error {
		if _, err := out.WriteAt(b, off); err != nil {
			return fmt.Errorf("write %s: %w", to, err)
		}
		return nil
	})
}
