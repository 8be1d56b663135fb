package image

import (
	"bufio"
	"bytes"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

const (
	// peekBytes is how much of a stream is looked at to tell what it is.
	peekBytes = 64 << 10
	// maxWindow bounds the memory that a zstd stream may ask for.
	maxWindow = 128 << 20
)

var (
	gzipMagic  = []byte{0x1f, 0x8b, 0x08}
	zstdMagic  = []byte{0x28, 0xb5, 0x2f, 0xfd}
	xzMagic    = []byte{0xfd, '7', 'z', 'X', 'Z', 0}
	bzip2Magic = []byte("BZh")
)

// decompress gives the plain stream of r, which may be plain, gzip or zstd.
func decompress(r io.Reader) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, peekBytes)
	head, err := br.Peek(6)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, gzipMagic):
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, refused(err, "the gzip stream is damaged")
		}
		return z, nil
	case bytes.HasPrefix(head, zstdMagic):
		z, err := zstd.NewReader(br, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, refused(err, "the zstd stream is damaged")
		}
		return z.IOReadCloser(), nil
	case bytes.HasPrefix(head, xzMagic), bytes.HasPrefix(head, bzip2Magic):
		return nil, refused(nil, "it is compressed with xz or bzip2; use gzip, zstd or none")
	default:
		return io.NopCloser(br), nil
	}
}

// cappedReader fails with CodeTooLarge when more than left bytes are read.
type cappedReader struct {
	r    io.Reader
	left int64
	max  int64
}

func capped(r io.Reader, limit int64) *cappedReader {
	return &cappedReader{r: r, left: limit, max: limit}
}

func (c *cappedReader) Read(b []byte) (int, error) {
	if c.left <= 0 {
		// Only a byte too many is too large; the end is fine.
		if n, err := c.r.Read(make([]byte, 1)); n == 0 {
			return 0, err
		}
		return 0, tooLarge("the image is larger than %d bytes", c.max)
	}
	if int64(len(b)) > c.left {
		b = b[:c.left]
	}
	n, err := c.r.Read(b)
	c.left -= int64(n)
	return n, err
}
