package e2e

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// A sandbox under test is in one of two states, whole: each of its files says
// which. stateOf tells them apart from a mixture.
const (
	before = "before"
	after  = "after"
)

func putState(state, other string) string {
	return fmt.Sprintf(`mkdir -p /w/d && cd /w && echo %[1]s >a && echo %[1]s >b && echo %[1]s >d/c && rm -f only-%[2]s d/link && touch only-%[1]s && ln -s %[1]s d/link`, state, other)
}

// stateOf says which state a running sandbox has; an error when it is a mixture.
func (h *host) stateOf(id string) (string, error) {
	out, err := h.sh(id, `cd /w && cat a b d/c && ls -d only-* && readlink d/link`)
	if err != nil {
		return "", err
	}
	return whole(strings.Fields(strings.ReplaceAll(out, "only-", "")))
}

// stateIn says which state a checkpoint has.
func (h *host) stateIn(checkpoint string) (string, error) {
	var words []string
	err := h.checkpointTar(checkpoint, "/w", func(r io.Reader) error {
		for t := tar.NewReader(r); ; {
			head, err := t.Next()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			if _, only, found := strings.Cut(head.Name, "only-"); found {
				words = append(words, only)
			} else if head.Typeflag == tar.TypeSymlink {
				words = append(words, head.Linkname)
			} else if head.Typeflag == tar.TypeReg {
				b, err := io.ReadAll(t)
				if err != nil {
					return err
				}
				words = append(words, strings.TrimSpace(string(b)))
			}
		}
	})
	if err != nil {
		return "", err
	}
	return whole(words)
}

func whole(words []string) (string, error) {
	const files = 5
	if len(words) != files || len(slices.Compact(slices.Clone(words))) != 1 {
		return "", fmt.Errorf("a mixture: %q", words)
	}
	return words[0], nil
}
