package overlay

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// difference says in what two entries differ, times left out.
type difference uint8

const (
	differentType difference = 1 << iota
	differentContent
	differentMode
	differentMetadata // owner, extended attributes
)

// compare compares two entries. opaque says whether the opaque marker counts
// as metadata.
func compare(aDir *os.File, a string, ast *unix.Stat_t, bDir *os.File, b string, bst *unix.Stat_t, opaque bool) (difference, error) {
	if ast.Mode&unix.S_IFMT != bst.Mode&unix.S_IFMT {
		return differentType, nil
	}
	if idOf(ast) == idOf(bst) {
		return 0, nil
	}
	var d difference
	if ast.Mode != bst.Mode {
		d |= differentMode
	}
	if ast.Uid != bst.Uid || ast.Gid != bst.Gid {
		d |= differentMetadata
	} else if same, err := sameXattrs(aDir, a, bDir, b, opaque); err != nil {
		return 0, err
	} else if !same {
		d |= differentMetadata
	}
	same := true
	var err error
	switch ast.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		same, err = sameContent(aDir, a, ast, bDir, b, bst)
	case unix.S_IFLNK:
		var x, y string
		if x, err = readlinkAt(int(aDir.Fd()), a); err == nil {
			y, err = readlinkAt(int(bDir.Fd()), b)
		}
		same = x == y
	case unix.S_IFCHR, unix.S_IFBLK:
		same = ast.Rdev == bst.Rdev
	}
	if !same {
		d |= differentContent
	}
	return d, err
}

func sameXattrs(aDir *os.File, a string, bDir *os.File, b string, opaque bool) (bool, error) {
	x, err := readXattrsAt(aDir, a)
	if err != nil {
		return false, err
	}
	y, err := readXattrsAt(bDir, b)
	if err != nil {
		return false, err
	}
	return equalXattrs(visible(x, opaque), visible(y, opaque)), nil
}

func equalXattrs(x, y []xattr) bool {
	return slices.EqualFunc(x, y, func(a, b xattr) bool { return a.name == b.name && bytes.Equal(a.value, b.value) })
}

func visible(xs []xattr, opaque bool) []xattr {
	kept := xs[:0]
	for _, x := range xs {
		if keptXattr(x.name) && (opaque || x.name != opaqueXattr) {
			kept = append(kept, x)
		}
	}
	return kept
}

func sameContent(aDir *os.File, a string, ast *unix.Stat_t, bDir *os.File, b string, bst *unix.Stat_t) (bool, error) {
	if ast.Size != bst.Size {
		return false, nil
	}
	if ast.Size == 0 {
		return true, nil
	}
	x, err := openFile(int(aDir.Fd()), a)
	if err != nil {
		return false, err
	}
	defer x.Close()
	y, err := openFile(int(bDir.Fd()), b)
	if err != nil {
		return false, err
	}
	defer y.Close()
	return sameBytes(x, y)
}

func sameBytes(x, y io.Reader) (bool, error) {
	const size = 128 << 10
	p, q := make([]byte, size), make([]byte, size)
	for {
		n, err1 := io.ReadFull(x, p)
		m, err2 := io.ReadFull(y, q)
		if n != m || !bytes.Equal(p[:n], q[:m]) {
			return false, nil
		}
		for _, err := range []error{err1, err2} {
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return false, err
			}
		}
		if n < size {
			return true, nil
		}
	}
}
