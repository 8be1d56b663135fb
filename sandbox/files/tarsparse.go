package files

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	tarBlock = 512
	// sparseMin is the least number of bytes in holes that is worth a map.
	sparseMin = 64 << 10
	// maxExtents bounds the map; more holes than that are written as zeros.
	maxExtents = 10_000
)

type extent struct{ offset, length int64 }

// extents returns where f has data, and whether leaving out the rest is worth it.
func extents(f *os.File, size int64) (data []extent, sparse bool) {
	var sum int64
	for pos := int64(0); pos < size; {
		start, err := unix.Seek(int(f.Fd()), pos, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || start >= size && err == nil {
			break // nothing but a hole up to the end
		}
		if err != nil {
			return nil, false
		}
		end, err := unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return nil, false
		}
		end = min(end, size)
		if end <= start { // changing under us
			return nil, false
		}
		if len(data) == maxExtents {
			// The rest is one extent; its holes travel as zeros.
			last := &data[len(data)-1]
			sum += size - last.offset - last.length
			last.length = size - last.offset
			break
		}
		data = append(data, extent{start, end - start})
		sum += end - start
		pos = end
	}
	return data, size-sum >= sparseMin
}

// sparse writes a file with holes in GNU tar's PAX format 1.0, which archive/tar
// reads but does not write:
// https://www.gnu.org/software/tar/manual/html_section/Sparse-Formats.html
func (t *tarWriter) sparse(f *File, h *tar.Header, data []extent) error {
	var table bytes.Buffer
	// A map that does not reach the end needs an empty extent there.
	if n := len(data); n == 0 || data[n-1].offset+data[n-1].length < h.Size {
		data = append(data, extent{h.Size, 0})
	}
	fmt.Fprintf(&table, "%d\n", len(data))
	stored := int64(0)
	for _, e := range data {
		fmt.Fprintf(&table, "%d\n%d\n", e.offset, e.length)
		stored += e.length
	}
	table.Write(make([]byte, padding(int64(table.Len()))))

	records := maps.Clone(h.PAXRecords)
	if records == nil {
		records = make(map[string]string)
	}
	size := int64(table.Len()) + stored
	records["GNU.sparse.major"] = "1"
	records["GNU.sparse.minor"] = "0"
	records["GNU.sparse.name"] = h.Name
	records["GNU.sparse.realsize"] = strconv.FormatInt(h.Size, 10)
	records["size"] = strconv.FormatInt(size, 10)
	records["uid"] = strconv.Itoa(h.Uid)
	records["gid"] = strconv.Itoa(h.Gid)
	records["mtime"] = fmt.Sprintf("%d.%09d", h.ModTime.Unix(), h.ModTime.Nanosecond())
	if h.ModTime.Unix() < 0 {
		records["mtime"] = strconv.FormatInt(h.ModTime.Unix(), 10)
	}
	var pax bytes.Buffer
	for _, k := range slices.Sorted(maps.Keys(records)) {
		pax.WriteString(paxRecord(k, records[k]))
	}

	if err := t.tw.Flush(); err != nil {
		return err
	}
	base := path.Base(h.Name)
	base = base[:min(len(base), 60)]
	x := ustar("./PaxHeaders.0/"+base, tar.TypeXHeader, 0o644, int64(pax.Len()))
	pax.Write(make([]byte, padding(int64(pax.Len()))))
	// A reader without the extension sees the table and the data under this name.
	u := ustar("./GNUSparseFile.0/"+base, tar.TypeReg, h.Mode, size)
	for _, b := range [][]byte{x, pax.Bytes(), u, table.Bytes()} {
		if _, err := t.out.Write(b); err != nil {
			return err
		}
	}
	for _, e := range data {
		if err := t.content(t.out, f, e); err != nil {
			return err
		}
	}
	_, err := t.out.Write(make([]byte, padding(size)))
	return err
}

func padding(n int64) int64 { return -n & (tarBlock - 1) }

// paxRecord formats "LENGTH KEY=VALUE\n", whose length counts its own digits.
func paxRecord(k, v string) string {
	rest := " " + k + "=" + v + "\n"
	n := len(rest)
	for {
		s := strconv.Itoa(n) + rest
		if len(s) == n {
			return s
		}
		n = len(s)
	}
}

// ustar builds a header block. A size that does not fit is left to the PAX record.
func ustar(name string, kind byte, mode, size int64) []byte {
	b := make([]byte, tarBlock)
	octal := func(at, width int, v int64) { copy(b[at:], fmt.Sprintf("%0*o", width-1, v)) }
	if size >= 1<<33 {
		size = 0
	}
	copy(b[0:100], name)
	octal(100, 8, mode)
	octal(108, 8, 0)
	octal(116, 8, 0)
	octal(124, 12, size)
	octal(136, 12, 0)
	b[156] = kind
	copy(b[257:], "ustar\x0000")
	copy(b[148:156], "        ")
	sum := int64(0)
	for _, c := range b {
		sum += int64(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}
