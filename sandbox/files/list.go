package files

import (
	"container/heap"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// dirChunk is how many names of a directory are held at a time.
const dirChunk = 1024

// Page is a part of a directory.
type Page struct {
	Items []Info // by the bytes of their names, ascending
	Next  string // cursor of the next page; "" when this is the last
}

// List describes the entries of the directory path, limit of them at most, that
// come after cursor ("" to begin). limit 0 means, and is cut to, Limits.ListItems.
// An entry on which another file system is mounted has Mount set.
// Errors: ErrNotFound, ErrNotDir, ErrOutside, ErrInvalid for a bad cursor.
func (r *Root) List(ctx context.Context, path, cursor string, limit int) (Page, error) {
	p, err := r.list(ctx, path, cursor, limit)
	return p, fail("list", path, err)
}

func (r *Root) list(ctx context.Context, path, cursor string, limit int) (Page, error) {
	after, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return Page{}, because(ErrInvalid, "bad cursor")
	}
	if limit <= 0 || limit > r.limits.ListItems {
		limit = r.limits.ListItems
	}
	f, err := r.open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return Page{}, err
	}
	dir := os.NewFile(uintptr(f), "dir")
	defer func() { _ = dir.Close() }()

	// A page costs memory for the page only, whatever the sandbox has put into
	// the directory: the smallest names after the cursor are kept in a heap.
	var names maxHeap
	for {
		if err := ctx.Err(); err != nil {
			return Page{}, err
		}
		chunk, err := dir.Readdirnames(dirChunk)
		for _, n := range chunk {
			if n <= string(after) {
				continue
			}
			if len(names) <= limit {
				heap.Push(&names, n)
			} else if n < names[0] {
				names[0] = n
				heap.Fix(&names, 0)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Page{}, err
		}
	}
	slices.Sort(names)
	var page Page
	if len(names) > limit {
		names = names[:limit]
		page.Next = base64.RawURLEncoding.EncodeToString([]byte(names[limit-1]))
	}
	page.Items = make([]Info, 0, len(names))
	for _, n := range names {
		info, err := r.entry(f, n)
		if errors.Is(err, unix.ENOENT) {
			continue // gone since
		}
		if err != nil {
			return Page{}, err
		}
		page.Items = append(page.Items, info)
	}
	return page, nil
}

// entry describes one name of an open directory.
func (r *Root) entry(dir fd, name string) (Info, error) {
	var st unix.Statx_t
	if err := statx(int(dir), name, 0, &st); err != nil {
		return Info{}, err
	}
	info := r.info(name, &st)
	if info.Type == TypeSymlink && !info.Mount {
		buf := make([]byte, pathMax+1)
		n, err := unix.Readlinkat(int(dir), name, buf)
		if err != nil {
			if errors.Is(err, unix.EINVAL) { // another type since
				err = unix.ENOENT
			}
			return Info{}, err
		}
		info.Target, info.TargetBytes = text(string(buf[:n]))
	}
	return info, nil
}

// maxHeap keeps its largest name first.
type maxHeap []string

func (h maxHeap) Len() int           { return len(h) }
func (h maxHeap) Less(i, j int) bool { return h[i] > h[j] }
func (h maxHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *maxHeap) Push(x any)        { *h = append(*h, x.(string)) }
func (h *maxHeap) Pop() any {
	n := len(*h) - 1
	x := (*h)[n]
	*h = (*h)[:n]
	return x
}
