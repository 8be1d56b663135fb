package files

import (
	"bytes"
	"os"
)

const page = 4096

// writeSparse writes data at off, leaving out pages of zeros. The caller sets the
// file's size at the end. off is a multiple of the page size but for the last call.
func writeSparse(f *os.File, data []byte, off int64) error {
	var zero [page]byte
	for len(data) > 0 {
		n := 0
		for n < len(data) && !isZero(data[n:min(n+page, len(data))], zero[:]) {
			n = min(n+page, len(data))
		}
		if n > 0 {
			if _, err := f.WriteAt(data[:n], off); err != nil {
				return err
			}
		} else {
			n = min(page, len(data))
		}
		data, off = data[n:], off+int64(n)
	}
	return nil
}

func isZero(b, zero []byte) bool { return bytes.Equal(b, zero[:len(b)]) }
