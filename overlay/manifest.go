package overlay

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// record is a line of a manifest: one entry of a layer.
type record struct {
	path   string
	mode   uint32 // st_mode, type included
	uid    uint32
	gid    uint32
	size   int64 // of a regular file
	mtime  unix.Timespec
	sum    []byte // SHA-256 of a regular file's content
	link   string // target of a symbolic link
	rdev   uint64 // of a device; 0 is a whiteout
	same   string // the first path of a group of hard links, if not this one
	xattrs []xattr
}

const manifestHeader = "cairn-manifest 1"

// maxManifestLine bounds a line, which is long only with many large extended
// attributes, of which each byte may take four.
const maxManifestLine = 64 << 20

// typeLetter is how a file type is written: as by ls.
func typeLetter(mode uint32) byte {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return 'f'
	case unix.S_IFDIR:
		return 'd'
	case unix.S_IFLNK:
		return 'l'
	case unix.S_IFCHR:
		return 'c'
	case unix.S_IFBLK:
		return 'b'
	case unix.S_IFIFO:
		return 'p'
	case unix.S_IFSOCK:
		return 's'
	}
	return '?'
}

func typeMode(letter string) (uint32, bool) {
	switch letter {
	case "f":
		return unix.S_IFREG, true
	case "d":
		return unix.S_IFDIR, true
	case "l":
		return unix.S_IFLNK, true
	case "c":
		return unix.S_IFCHR, true
	case "b":
		return unix.S_IFBLK, true
	case "p":
		return unix.S_IFIFO, true
	case "s":
		return unix.S_IFSOCK, true
	}
	return 0, false
}

// append writes a record as a line. FORMAT.md has the grammar.
func (r *record) append(b []byte) []byte {
	b = append(b, typeLetter(r.mode), ' ')
	b = fmt.Appendf(b, "%04o %d %d %d.%09d %s", r.mode&0o7777, r.uid, r.gid, r.mtime.Sec, r.mtime.Nsec, escape(r.path))
	if r.sum != nil {
		b = fmt.Appendf(b, " size=%d sha256=%x", r.size, r.sum)
	}
	switch r.mode & unix.S_IFMT {
	case unix.S_IFLNK:
		b = append(b, " target="+escape(r.link)...)
	case unix.S_IFCHR, unix.S_IFBLK:
		b = fmt.Appendf(b, " device=%d:%d", unix.Major(r.rdev), unix.Minor(r.rdev))
	}
	if r.same != "" {
		b = append(b, " same="+escape(r.same)...)
	}
	for _, x := range r.xattrs {
		b = append(b, " x:"+escape(x.name)+"="+escape(string(x.value))...)
	}
	return append(b, '\n')
}

// readManifest parses a manifest and calls each for its records, whose paths
// are sorted as a tree walk meets them. It takes nothing but what append
// writes.
func readManifest(in io.Reader, each func(*record) error) error {
	sc := bufio.NewScanner(in)
	sc.Buffer(make([]byte, 64<<10), maxManifestLine)
	sc.Split(scanWholeLines)
	if !sc.Scan() {
		return errors.Join(errors.New("manifest is empty"), sc.Err())
	}
	if sc.Text() != manifestHeader {
		return fmt.Errorf("manifest starts with %q", sc.Text())
	}
	last, first := "", true
	for sc.Scan() {
		r, err := parseRecord(sc.Text())
		if err != nil {
			return err
		}
		if first != (r.path == ".") || !first && !pathBefore(last, r.path) {
			return fmt.Errorf("manifest has %q out of order", r.path)
		}
		last, first = r.path, false
		if err := each(r); err != nil {
			return err
		}
	}
	if err := sc.Err(); err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	if first {
		return errors.New("manifest has no root")
	}
	return nil
}

// scanWholeLines is bufio.ScanLines that takes no unfinished last line.
func scanWholeLines(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return 0, nil, nil
}

// pathBefore says whether a tree walk meets path a before b: the paths are
// compared element by element.
func pathBefore(a, b string) bool {
	if a == "." {
		return b != "."
	}
	if b == "." {
		return false
	}
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return x[i] < y[i]
		}
	}
	return len(x) < len(y)
}

func parseRecord(line string) (*record, error) {
	bad := func(what string) (*record, error) {
		return nil, fmt.Errorf("manifest line %q: bad %s", line, what)
	}
	f := strings.Split(line, " ")
	if len(f) < 6 {
		return bad("number of fields")
	}
	r := &record{}
	typ, ok := typeMode(f[0])
	if !ok {
		return bad("type")
	}
	perm, err := strconv.ParseUint(f[1], 8, 12)
	if err != nil {
		return bad("mode")
	}
	r.mode = typ | uint32(perm)
	uid, err1 := strconv.ParseUint(f[2], 10, 32)
	gid, err2 := strconv.ParseUint(f[3], 10, 32)
	if err1 != nil || err2 != nil {
		return bad("owner")
	}
	r.uid, r.gid = uint32(uid), uint32(gid)
	sec, nsec, _ := strings.Cut(f[4], ".")
	s, err1 := strconv.ParseInt(sec, 10, 64)
	ns, err2 := strconv.ParseUint(nsec, 10, 32)
	if err1 != nil || err2 != nil || ns > 999999999 {
		return bad("time")
	}
	r.mtime = unix.Timespec{Sec: s, Nsec: int64(ns)}
	if r.path, err = unescape(f[5]); err != nil || !goodPath(r.path) {
		return bad("path")
	}
	for _, opt := range f[6:] {
		if err := r.option(opt); err != nil {
			return bad(err.Error())
		}
	}
	// Whatever was accepted loosely above is caught here.
	if string(r.append(nil)) != line+"\n" {
		return bad("form")
	}
	return r, nil
}

func (r *record) option(opt string) (err error) {
	key, value, _ := strings.Cut(opt, "=")
	switch key {
	case "size":
		r.size, err = strconv.ParseInt(value, 10, 64)
	case "sha256":
		if r.sum, err = hex.DecodeString(value); err == nil && len(r.sum) != 32 {
			err = errors.New("length")
		}
	case "target":
		r.link, err = unescape(value)
	case "device":
		major, minor, _ := strings.Cut(value, ":")
		ma, err1 := strconv.ParseUint(major, 10, 32)
		mi, err2 := strconv.ParseUint(minor, 10, 32)
		r.rdev, err = unix.Mkdev(uint32(ma), uint32(mi)), errors.Join(err1, err2)
	case "same":
		if r.same, err = unescape(value); err == nil && !goodPath(r.same) {
			err = errors.New("path")
		}
	default:
		name, ok := strings.CutPrefix(key, "x:")
		if !ok {
			return errors.New("field " + key)
		}
		var x xattr
		var value2 string
		x.name, err = unescape(name)
		if err == nil {
			value2, err = unescape(value)
		}
		x.value = []byte(value2)
		r.xattrs = append(r.xattrs, x)
	}
	if err != nil {
		return errors.New(key)
	}
	return nil
}

// goodPath says whether a path is "." or a clean relative one.
func goodPath(path string) bool {
	if path == "." {
		return true
	}
	for e := range strings.SplitSeq(path, "/") {
		if e == "" || e == "." || e == ".." || strings.IndexByte(e, 0) >= 0 {
			return false
		}
	}
	return true
}
