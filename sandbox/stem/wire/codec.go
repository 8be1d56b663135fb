package wire

// AppendUint appends v as an unsigned varint.
func AppendUint(buf []byte, v uint64) []byte {
	for v >= 0x80 {
		buf = append(buf, byte(v)|0x80)
		v >>= 7
	}
	return append(buf, byte(v))
}

// AppendString appends a length and the bytes of s.
func AppendString(buf []byte, s string) []byte {
	return append(AppendUint(buf, uint64(len(s))), s...)
}

// AppendStrings appends a count and each string.
func AppendStrings(buf []byte, list []string) []byte {
	buf = AppendUint(buf, uint64(len(list)))
	for _, s := range list {
		buf = AppendString(buf, s)
	}
	return buf
}

// AppendBool appends one byte.
func AppendBool(buf []byte, v bool) []byte {
	if v {
		return append(buf, 1)
	}
	return append(buf, 0)
}

// reader takes fields off a payload. The first mistake sticks: later fields read as zero,
// and done reports it.
type reader struct {
	buf []byte
	bad bool
}

func (r *reader) fail() {
	r.bad = true
	r.buf = nil
}

func (r *reader) uint() uint64 {
	var v uint64
	for i, b := range r.buf {
		if i == 9 && b > 1 {
			break
		}
		if b < 0x80 {
			if b == 0 && i > 0 {
				break // a longer spelling of a shorter number
			}
			r.buf = r.buf[i+1:]
			return v | uint64(b)<<(7*i)
		}
		if i == 9 {
			break
		}
		v |= uint64(b&0x7f) << (7 * i)
	}
	r.fail()
	return 0
}

// upTo reads a number that may not exceed limit.
func (r *reader) upTo(limit uint64) uint64 {
	v := r.uint()
	if v > limit {
		r.fail()
		return 0
	}
	return v
}

func (r *reader) bytes() []byte {
	n := r.uint()
	if r.bad || n > uint64(len(r.buf)) {
		r.fail()
		return nil
	}
	b := r.buf[:n]
	r.buf = r.buf[n:]
	return b
}

func (r *reader) string() string { return string(r.bytes()) }

func (r *reader) strings() []string {
	n := r.uint()
	// Each item takes at least its length byte.
	if r.bad || n > uint64(len(r.buf)) {
		r.fail()
		return nil
	}
	var list []string
	for range n {
		list = append(list, r.string())
		if r.bad {
			return nil
		}
	}
	return list
}

func (r *reader) bool() bool { return r.upTo(1) == 1 }

func (r *reader) done() error {
	if r.bad || len(r.buf) != 0 {
		return ErrMalformed
	}
	return nil
}
