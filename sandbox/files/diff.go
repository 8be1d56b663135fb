package files

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/aymanbagabas/go-udiff"
)

// Bounds of [UnifiedDiff]; beyond them it only says that the files differ.
const (
	diffBytes = 8 << 20 // both together
	diffLines = 200_000 // both together
)

// UnifiedDiff compares two texts in the manner of diff -u, with ctx lines of
// context. It returns "" for equal ones. Content with a NUL byte is binary: then,
// and when the texts are too large (8 MiB or 200,000 lines together), the result
// is one line that says that they differ. Where texts differ very much, the
// result is right but not the shortest.
func UnifiedDiff(aName, bName string, a, b []byte, ctx int) (diff string, binary bool) {
	if bytes.Equal(a, b) {
		return "", false
	}
	aName, bName = label(aName), label(bName)
	if bytes.IndexByte(a, 0) >= 0 || bytes.IndexByte(b, 0) >= 0 {
		return fmt.Sprintf("Binary files %s and %s differ\n", aName, bName), true
	}
	newline := []byte{'\n'}
	if len(a)+len(b) > diffBytes || bytes.Count(a, newline)+bytes.Count(b, newline) > diffLines {
		return fmt.Sprintf("Files %s and %s differ (too large to compare)\n", aName, bName), false
	}
	before, after := string(a), string(b)
	diff, err := udiff.ToUnified(aName, bName, before, udiff.Lines(before, after), max(ctx, 0))
	if err != nil {
		return fmt.Sprintf("Files %s and %s differ\n", aName, bName), false
	}
	return diff, false
}

// label keeps a name from forging lines of the diff.
func label(name string) string {
	if strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return strconv.Quote(name)
	}
	return name
}
