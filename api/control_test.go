package api

import "testing"

// Whatever is accepted is within its bounds.
func FuzzControl(f *testing.F) {
	for _, s := range []string{
		`{"resize":{"rows":24,"cols":80}}`, `{"signal":"SIGINT"}`, `{"signal":9}`, `{"close_stdin":true}`, `{"signal":null}`, `{"x":1}`, "{", "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseControl(data)
		if err != nil {
			return
		}
		if c.signal < 0 || c.signal > 64 {
			t.Errorf("signal %d", c.signal)
		}
		if c.Resize != nil {
			if size := terminalSize(*c.Resize); int(size.Rows) != c.Resize.Rows || int(size.Cols) != c.Resize.Cols || size.Rows == 0 || size.Cols == 0 {
				t.Errorf("%+v became %+v", *c.Resize, size)
			}
		}
	})
}
