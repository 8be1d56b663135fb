package rig

import "testing"

func TestWithoutPool(t *testing.T) {
	for _, c := range []struct{ config, want string }{
		{"", "\n[warm]\nnone = 0\n"},
		{"[warm]\nnone = 64\n", "[warm]\nnone = 0\n"},
		{"[log]\nlevel = \"warn\"\n[warm]\nnone = 4\n[pool]\nmax_depth = 3\n", "[log]\nlevel = \"warn\"\n[warm]\nnone = 0\n[pool]\nmax_depth = 3\n"},
	} {
		if got := withoutPool(c.config); got != c.want {
			t.Errorf("%q becomes %q, want %q", c.config, got, c.want)
		}
	}
}
