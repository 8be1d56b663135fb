package cli

import (
	"bytes"
	"fmt"
	"strings"
)

// defaultDetach is what to type to leave a process running.
const defaultDetach = "ctrl-p,ctrl-q"

// parseKeys reads a sequence of keys such as "ctrl-p,ctrl-q"; "" is none.
func parseKeys(s string) ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	var keys []byte
	for k := range strings.SplitSeq(s, ",") {
		letter, ctrl := strings.CutPrefix(strings.ToLower(k), "ctrl-")
		switch {
		case ctrl && len(letter) == 1 && (letter[0] >= 'a' && letter[0] <= 'z' || strings.Contains(`@[\]^_`, letter)):
			const controlBits = 0x1f
			keys = append(keys, letter[0]&controlBits)
		case len(k) == 1:
			keys = append(keys, k[0])
		default:
			return nil, fmt.Errorf("key %q: want a character, or ctrl- and one of a to z @ [ \\ ] ^ _", k)
		}
	}
	return keys, nil
}

// detacher looks for a sequence of keys in what is typed. What may be the beginning
// of the sequence is held back until the next key tells.
type detacher struct {
	keys []byte
	held int // so many of keys were typed last
}

// feed returns what of the input is to be passed on, and whether the sequence is
// complete; then what follows it is dropped.
func (d *detacher) feed(in []byte) (out []byte, detach bool) {
	if len(d.keys) == 0 {
		return in, false
	}
	out = make([]byte, 0, len(in)+d.held)
	for _, b := range in {
		typed := append(bytes.Clone(d.keys[:d.held]), b)
		// The longest end of what was typed that the sequence begins with is held.
		n := min(len(typed), len(d.keys))
		for ; !bytes.HasPrefix(d.keys, typed[len(typed)-n:]); n-- {
		}
		out = append(out, typed[:len(typed)-n]...)
		if d.held = n; n == len(d.keys) {
			d.held = 0
			return out, true
		}
	}
	return out, false
}
