package pages

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// The two magic numbers of a pagemap (criu/include/magic.h).
const (
	magicCommon  = 0x54564319
	magicPagemap = 0x56084025
)

// Flags of an entry (criu/include/pagemap.h).
const (
	inParent = 1 << 0 // the parent directory has the pages
	lazy     = 1 << 1 // they may be restored on demand; means nothing to a plain restore
	present  = 1 << 2 // the pages file has them
)

const (
	maxMessage = 128     // bytes; an entry has at most 5 numbers
	maxAddr    = 1 << 56 // end of a user address space with 5 levels of page tables
)

// FormatError says that images are not what CRIU writes, or more than is understood here.
type FormatError struct {
	File    string
	Message string
}

func (e *FormatError) Error() string { return e.File + ": " + e.Message }

// entry is a run of pages.
type entry struct {
	addr  uint64 // in the process; in a shared object, the offset
	pages uint64
	flags uint32
}

func (e entry) end() uint64 { return e.addr + e.pages*pageSize }

// mapReader reads a pagemap entry by entry. go-criu's type has the number of pages where
// CRIU has left 0 since version 4: the messages are read by field.
type mapReader struct {
	name string
	r    *bufio.Reader
	id   uint32 // of the pages file
	end  uint64 // of the entry before
	buf  [maxMessage]byte
}

func newMapReader(name string, r io.Reader) (*mapReader, error) {
	m := &mapReader{name: name, r: bufio.NewReaderSize(r, 1<<16)}
	var magic [8]byte
	if _, err := io.ReadFull(m.r, magic[:]); err != nil {
		return nil, m.short(err)
	}
	if binary.LittleEndian.Uint32(magic[:]) != magicCommon || binary.LittleEndian.Uint32(magic[4:]) != magicPagemap {
		return nil, m.bad("not a pagemap")
	}
	b, err := m.message()
	if errors.Is(err, io.EOF) {
		return nil, m.bad("no head")
	}
	if err != nil {
		return nil, err
	}
	found := false
	err = m.numbers(b, func(n protowire.Number, v uint64) bool {
		if n != 1 || v > math.MaxUint32 {
			return false
		}
		m.id, found = uint32(v), true
		return true
	})
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, m.bad("no number of a pages file")
	}
	return m, nil
}

// next gives the next entry; io.EOF at the end. Entries are in ascending order, do not
// overlap, and have either the flag present or inParent.
func (m *mapReader) next() (entry, error) {
	b, err := m.message()
	if err != nil {
		return entry{}, err
	}
	var e entry
	var compat uint64
	var hasAddr, hasPages, hasFlags, parent bool
	err = m.numbers(b, func(n protowire.Number, v uint64) bool {
		switch n {
		case 1:
			e.addr, hasAddr = v, true
		case 2:
			compat = v & math.MaxUint32
		case 3:
			parent = v != 0
		case 4:
			if v > math.MaxUint32 {
				return false
			}
			e.flags, hasFlags = uint32(v), true
		case 5:
			e.pages, hasPages = v, true
		default:
			return false
		}
		return true
	})
	if err != nil {
		return entry{}, err
	}
	// As CRIU reads what older versions wrote (init_compat_pagemap_entry).
	switch {
	case parent:
		e.flags |= inParent
	case !hasFlags:
		e.flags = present
	}
	if !hasPages {
		e.pages = compat
	}
	switch {
	case !hasAddr || e.addr%pageSize != 0 || e.addr >= maxAddr:
		return entry{}, m.bad(fmt.Sprintf("address %#x", e.addr))
	case e.pages == 0 || e.pages > (maxAddr-e.addr)/pageSize:
		return entry{}, m.bad(fmt.Sprintf("%d pages at %#x", e.pages, e.addr))
	case e.addr < m.end:
		return entry{}, m.bad(fmt.Sprintf("%#x is out of order", e.addr))
	case e.flags&^(inParent|lazy|present) != 0, e.flags&inParent != 0 == (e.flags&present != 0):
		return entry{}, m.bad(fmt.Sprintf("flags %#x", e.flags))
	}
	m.end = e.end()
	return e, nil
}

// message reads a message; io.EOF where the file ends before it.
func (m *mapReader) message() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(m.r, head[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		return nil, m.short(err)
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxMessage {
		return nil, m.bad(fmt.Sprintf("a message of %d bytes", n))
	}
	if _, err := io.ReadFull(m.r, m.buf[:n]); err != nil {
		return nil, m.short(err)
	}
	return m.buf[:n], nil
}

// numbers calls fn for each field of a message that has nothing but numbers. What fn
// does not accept is an error: a field unknown here may change what the others mean.
func (m *mapReader) numbers(b []byte, fn func(protowire.Number, uint64) bool) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || typ != protowire.VarintType {
			return m.bad("malformed message")
		}
		v, k := protowire.ConsumeVarint(b[n:])
		if k < 0 {
			return m.bad("malformed message")
		}
		if !fn(num, v) {
			return m.bad(fmt.Sprintf("field %d", num))
		}
		b = b[n+k:]
	}
	return nil
}

func (m *mapReader) bad(message string) error { return &FormatError{File: m.name, Message: message} }

func (m *mapReader) short(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return m.bad("it ends early")
	}
	return fmt.Errorf("read %s: %w", m.name, err)
}

// mapWriter writes a pagemap.
type mapWriter struct {
	w       *bufio.Writer
	bytes   int64
	entries int
}

func newMapWriter(w io.Writer, id uint32) *mapWriter {
	m := &mapWriter{w: bufio.NewWriterSize(w, 1<<16)}
	var magic []byte
	magic = binary.LittleEndian.AppendUint32(magic, magicCommon)
	magic = binary.LittleEndian.AppendUint32(magic, magicPagemap)
	m.put(magic)
	m.message(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(id)))
	return m
}

func (m *mapWriter) add(e entry) {
	var compat uint64 // a required field; CRIU reads it where the other one is missing
	if e.pages <= math.MaxUint32 {
		compat = e.pages
	}
	var b []byte
	b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), e.addr)
	b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), compat)
	b = protowire.AppendVarint(protowire.AppendTag(b, 4, protowire.VarintType), uint64(e.flags))
	b = protowire.AppendVarint(protowire.AppendTag(b, 5, protowire.VarintType), e.pages)
	m.message(b)
	m.entries++
}

func (m *mapWriter) message(b []byte) {
	m.put(binary.LittleEndian.AppendUint32(nil, uint32(len(b))))
	m.put(b)
}

// put leaves an error to flush, as the buffer keeps it.
func (m *mapWriter) put(b []byte) {
	n, _ := m.w.Write(b)
	m.bytes += int64(n)
}

func (m *mapWriter) flush() error { return m.w.Flush() }
