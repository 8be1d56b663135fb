package image

import (
	"io"
	"sync"
	"time"
)

// Progress says how far a pull or an import is.
type Progress struct {
	Status     string // "resolving", "downloading", "unpacking", "sealing", "done"
	Layer      string // digest of the blob, "" when it is about the whole
	DoneBytes  int64  // of the blob
	TotalBytes int64  // 0 while it is not known
}

// progressEvery is how often the bytes of one blob are reported.
const progressEvery = 200 * time.Millisecond

// reporter calls fn from one goroutine at a time.
type reporter struct {
	mu sync.Mutex
	fn func(Progress)
}

func (r *reporter) say(p Progress) {
	if r.fn == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fn(p)
}

// reading reports while rd is read.
func (r *reporter) reading(rd io.Reader, status, layer string, total int64) io.Reader {
	if r.fn == nil {
		return rd
	}
	return &progressReader{Reader: rd, r: r, p: Progress{Status: status, Layer: layer, TotalBytes: total}}
}

type progressReader struct {
	io.Reader
	r    *reporter
	p    Progress
	last time.Time
}

func (p *progressReader) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	p.p.DoneBytes += int64(n)
	if now := time.Now(); err != nil || now.Sub(p.last) >= progressEvery {
		p.last = now
		p.r.say(p.p)
	}
	return n, err
}
