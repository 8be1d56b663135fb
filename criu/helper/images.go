package helper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"cairn/criu/internal/frame"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// An image file is two magic numbers and then entries: a length in 4 bytes, little endian,
// and a protocol buffer of that length. The messages are CRIU's, in its images/*.proto;
// what is read here are single fields of them.
const (
	headerLen = 8
	maxImage  = 256 << 20

	pstreeFile  = "pstree.img"
	filesFile   = "files.img"
	seccompFile = "seccomp.img"
	statsFile   = "stats-dump"
)

var errMalformed = errors.New("malformed image")

func readImage(dir *os.File, name string) ([]byte, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxImage+1))
	if err != nil {
		return nil, err
	}
	if len(b) < headerLen || len(b) > maxImage {
		return nil, fmt.Errorf("%s: %w", name, errMalformed)
	}
	return b, nil
}

// replaceImage puts an image in the place of the one of that name.
func replaceImage(dir *os.File, name string, b []byte) error {
	tmp := name + ".new"
	fd, err := unix.Openat(int(dir.Fd()), tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), tmp)
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err != nil {
		_ = unix.Unlinkat(int(dir.Fd()), tmp, 0)
		return err
	}
	return unix.Renameat(int(dir.Fd()), tmp, int(dir.Fd()), name)
}

// entries calls fn for each entry of an image.
func entries(b []byte, fn func(entry []byte) error) error {
	for b = b[headerLen:]; len(b) > 0; {
		if len(b) < 4 {
			return errMalformed
		}
		n := binary.LittleEndian.Uint32(b)
		if b = b[4:]; uint64(n) > uint64(len(b)) {
			return errMalformed
		}
		if err := fn(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// fields calls fn for each field of a message, with its whole encoding and the content of
// one of variable length or the value of a number.
func fields(m []byte, fn func(n protowire.Number, whole, content []byte, value uint64) error) error {
	for len(m) > 0 {
		num, typ, k := protowire.ConsumeTag(m)
		if k < 0 {
			return errMalformed
		}
		size := protowire.ConsumeFieldValue(num, typ, m[k:])
		if size < 0 {
			return errMalformed
		}
		var content []byte
		var value uint64
		switch typ {
		case protowire.BytesType:
			content, _ = protowire.ConsumeBytes(m[k:])
		case protowire.VarintType:
			value, _ = protowire.ConsumeVarint(m[k:])
		default:
		}
		if err := fn(num, m[:k+size], content, value); err != nil {
			return err
		}
		m = m[k+size:]
	}
	return nil
}

// pidsOf lists the ids that the tree needs: of processes, threads, groups and sessions.
func pidsOf(dir *os.File) (map[int]bool, error) {
	ids := map[int]bool{}
	err := eachProcess(dir, func(pid int, all []int) {
		for _, id := range all {
			ids[id] = true
		}
	})
	return ids, err
}

// eachProcess calls fn for every process of the tree with all its ids, threads last.
func eachProcess(dir *os.File, fn func(pid int, ids []int)) error {
	b, err := readImage(dir, pstreeFile)
	if err != nil {
		return err
	}
	return entries(b, func(e []byte) error {
		const pid, ppid = 1, 2
		var ids []int
		err := fields(e, func(n protowire.Number, _, content []byte, v uint64) error {
			if n == ppid {
				return nil
			}
			if content != nil { // packed
				for len(content) > 0 {
					v, k := protowire.ConsumeVarint(content)
					if k < 0 {
						return errMalformed
					}
					ids, content = append(ids, int(v)), content[k:]
				}
				return nil
			}
			ids = append(ids, int(v))
			return nil
		})
		if err != nil || len(ids) == 0 {
			return errors.Join(err, errMalformed)
		}
		fn(ids[0], ids)
		return nil
	})
}

// freeSizes takes the size out of the entries of files below the given directories, which
// go on growing after the dump, so that they are opened again whatever their size is. It
// lists these files.
func freeSizes(dir *os.File, below []string) ([]frame.File, error) {
	if len(below) == 0 {
		return nil, nil
	}
	b, err := readImage(dir, filesFile)
	if err != nil {
		return nil, err
	}
	out := append([]byte(nil), b[:headerLen]...)
	var files []frame.File
	err = entries(b, func(e []byte) error {
		const regField = 3
		var made []byte
		err := fields(e, func(n protowire.Number, whole, content []byte, _ uint64) error {
			if n != regField {
				made = append(made, whole...)
				return nil
			}
			reg, f, err := freeSize(content, below)
			if err != nil {
				return err
			}
			if f != nil {
				files = append(files, *f)
			}
			made = protowire.AppendTag(made, regField, protowire.BytesType)
			made = protowire.AppendBytes(made, reg)
			return nil
		})
		out = binary.LittleEndian.AppendUint32(out, uint32(len(made)))
		out = append(out, made...)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, nil
	}
	return files, replaceImage(dir, filesFile, out)
}

// freeSize does so for one file; the file is nil when it is elsewhere.
func freeSize(reg []byte, below []string) ([]byte, *frame.File, error) {
	const nameField, sizeField, checksum, checksumEnd = 6, 8, 12, 14
	var name string
	var size uint64
	var made []byte
	err := fields(reg, func(n protowire.Number, whole, content []byte, v uint64) error {
		switch {
		case n == nameField:
			name = string(content)
		case n == sizeField:
			size = v
			return nil
		case n >= checksum && n <= checksumEnd:
			return nil
		}
		made = append(made, whole...)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	name = "/" + strings.TrimPrefix(name, "/")
	for _, d := range below {
		if strings.HasPrefix(name, d+"/") {
			return made, &frame.File{Path: name, Size: int64(size)}, nil
		}
	}
	return reg, nil, nil
}

// addFilters puts system call filters, the last installed one first, into the images.
// Each thread's entry says already that it has filter 0 of the list, and each filter says
// which one was there before it. The leader of a process puts them in place for all its
// threads at once: CRIU arranges it so where all have the same, which is the case here.
func addFilters(dir *os.File, filters [][]byte) error {
	if len(filters) == 0 {
		return nil
	}
	b, err := readImage(dir, seccompFile)
	if err != nil {
		return err
	}
	var list []byte
	for i, f := range filters {
		const filter, prev, flags = 1, 2, 3
		var m []byte
		m = protowire.AppendTag(m, filter, protowire.BytesType)
		m = protowire.AppendBytes(m, f)
		if i+1 < len(filters) {
			m = protowire.AppendTag(m, prev, protowire.VarintType)
			m = protowire.AppendVarint(m, uint64(i+1))
		}
		m = protowire.AppendTag(m, flags, protowire.VarintType)
		m = protowire.AppendVarint(m, unix.SECCOMP_FILTER_FLAG_TSYNC)
		list = protowire.AppendTag(list, 1, protowire.BytesType)
		list = protowire.AppendBytes(list, m)
	}
	out := append([]byte(nil), b[:headerLen]...)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(list)))
	return replaceImage(dir, seccompFile, append(out, list...))
}

// readStats reads what CRIU measured.
func readStats(dir *os.File) (frame.DumpStats, error) {
	var s frame.DumpStats
	b, err := readImage(dir, statsFile)
	if err != nil {
		return s, err
	}
	err = entries(b, func(e []byte) error {
		return fields(e, func(n protowire.Number, _, dump []byte, _ uint64) error {
			if n != 1 {
				return nil
			}
			return fields(dump, func(n protowire.Number, _, _ []byte, v uint64) error {
				switch n {
				case 1:
					s.FreezingUS = int64(v)
				case 2:
					s.FrozenUS = int64(v)
				case 3:
					s.MemDumpUS = int64(v)
				case 4:
					s.MemWriteUS = int64(v)
				case 5:
					s.PagesScanned = int64(v)
				case 6:
					s.PagesSkipped = int64(v)
				case 7:
					s.PagesWritten = int64(v)
				}
				return nil
			})
		})
	})
	if err != nil {
		return s, err
	}
	err = eachProcess(dir, func(_ int, ids []int) {
		s.Processes++
		s.Threads += max(len(ids)-3, 1)
	})
	return s, err
}
