package overlay

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// index is kept beside a capture and says what the upper's files were like:
// what the next capture goes by.
type index struct {
	upper   string
	entries map[string]indexEntry // by path
}

type indexEntry struct {
	ino     uint64
	ctime   unix.Timespec
	size    int64
	mode    uint32
	settled bool // the same change time later means: the same content
}

// is says whether the index has the entry as st has it.
func (e indexEntry) is(st *unix.Stat_t) bool {
	return e.ino == st.Ino && e.ctime == st.Ctim && e.size == st.Size && e.mode == st.Mode
}

const indexHeader = "cairn-index 1 "

func writeIndex(path string, i index) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("overlay: write index: %w", err)
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	fmt.Fprintf(w, "%s%s\n", indexHeader, i.upper)
	paths := make([]string, 0, len(i.entries))
	for path := range i.entries {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		e := i.entries[path]
		settled := 0
		if e.settled {
			settled = 1
		}
		fmt.Fprintf(w, "%d %d %d %d %o %d %s\n", e.ino, e.ctime.Sec, e.ctime.Nsec, e.size, e.mode, settled, escape(path))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("overlay: write index: %w", err)
	}
	return f.Close()
}

func readIndex(path string) (index, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return index{}, fmt.Errorf("overlay: read index: %w", err)
	}
	text, ok := strings.CutPrefix(string(b), indexHeader)
	head, rest, nl := strings.Cut(text, "\n")
	if !ok || !nl {
		return index{}, fmt.Errorf("overlay: index %s: no header", path)
	}
	i := index{upper: head, entries: map[string]indexEntry{}}
	for line := range strings.Lines(rest) {
		var e indexEntry
		f := strings.Split(strings.TrimSuffix(line, "\n"), " ")
		if len(f) != 7 {
			return index{}, fmt.Errorf("overlay: index line %q", line)
		}
		var n [6]int64
		for k := range n {
			base := 10
			if k == 4 {
				base = 8
			}
			if n[k], err = strconv.ParseInt(f[k], base, 64); err != nil {
				return index{}, fmt.Errorf("overlay: index line %q: %w", line, err)
			}
		}
		e.ino, e.ctime.Sec, e.ctime.Nsec = uint64(n[0]), n[1], n[2]
		e.size, e.mode, e.settled = n[3], uint32(n[4]), n[5] == 1
		name, err := unescape(f[6])
		if err != nil {
			return index{}, err
		}
		i.entries[name] = e
	}
	return i, nil
}

// escape writes a name without spaces, control or non-ASCII bytes: those and
// "\" become \xNN. An empty string is written as \e.
func escape(s string) string {
	if s == "" {
		return `\e`
	}
	plain := true
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || c == '\\' || c == '=' {
			plain = false
			break
		}
	}
	if plain {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || c == '\\' || c == '=' {
			fmt.Fprintf(&b, `\x%02x`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// unescape undoes escape and accepts nothing else.
func unescape(s string) (string, error) {
	if s == `\e` {
		return "", nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		if i+3 >= len(s) || s[i+1] != 'x' {
			return "", fmt.Errorf("overlay: bad escape in %q", s)
		}
		n, err := strconv.ParseUint(s[i+2:i+4], 16, 8)
		if err != nil {
			return "", fmt.Errorf("overlay: bad escape in %q", s)
		}
		b.WriteByte(byte(n))
		i += 3
	}
	if got := b.String(); escape(got) != s {
		return "", fmt.Errorf("overlay: %q is not written canonically", s)
	}
	return b.String(), nil
}
