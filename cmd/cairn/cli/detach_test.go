package cli

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

func TestParseKeys(t *testing.T) {
	for s, want := range map[string]string{"": "", "ctrl-p,ctrl-q": "\x10\x11", "ctrl-A,d": "\x01d", "ctrl-],~,.": "\x1d~.", "ctrl-@": "\x00"} {
		if got, err := parseKeys(s); err != nil || string(got) != want {
			t.Errorf("%q: %q, %v", s, got, err)
		}
	}
	for _, s := range []string{"ctrl-", "ctrl-1", "ctrl-ab", ",", "ab", "a,", "ü"} {
		if got, err := parseKeys(s); err == nil {
			t.Errorf("%q: %q", s, got)
		}
	}
}

// However the input is cut up: what comes out and what is held make up what went in,
// up to the first place where the keys were typed.
func TestDetacher(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.SampledFrom([]byte("abc"))
		keys := rapid.SliceOfN(letters, 1, 4).Draw(t, "keys")
		in := rapid.SliceOf(letters).Draw(t, "in")
		want, _, detach := bytes.Cut(in, keys)
		d := detacher{keys: keys}
		var got []byte
		for rest := in; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			out, done := d.feed(rest[:n])
			got, rest = append(got, out...), rest[n:]
			if done {
				if !detach || !bytes.Equal(got, want) {
					t.Fatalf("keys %q in %q: detached after %q", keys, in, got)
				}
				return
			}
		}
		if got = append(got, keys[:d.held]...); detach || !bytes.Equal(got, in) {
			t.Fatalf("keys %q in %q: got %q", keys, in, got)
		}
	})
}
