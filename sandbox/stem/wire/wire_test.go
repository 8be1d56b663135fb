package wire_test

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"testing"

	"cairn/sandbox/stem/wire"
)

func TestStartRoundTrip(t *testing.T) {
	want := &wire.Start{
		ID: "exec_01", Argv: []string{"sh", "", "ü"}, Env: []string{"A=1"}, Cwd: "/tmp", User: "a:b",
		Stdin: wire.StdinPipe, TTY: &wire.Size{Rows: 24, Cols: 65535},
	}
	got, err := wire.ParseStart(want.Append(nil))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestReadFrameBounds(t *testing.T) {
	whole, err := wire.AppendFrame(nil, wire.KindStdin, bytes.Repeat([]byte("x"), 200<<10))
	if err != nil {
		t.Fatal(err)
	}
	kind, payload, err := wire.ReadFrame(bytes.NewReader(whole), wire.MaxFrame)
	if err != nil || kind != wire.KindStdin || len(payload) != 200<<10 {
		t.Fatal(kind, len(payload), err)
	}
	if _, _, err := wire.ReadFrame(bytes.NewReader(whole), 100<<10); !errors.Is(err, wire.ErrTooLarge) {
		t.Fatal(err)
	}
	for _, n := range []int{1, 4, 5, 70 << 10} {
		if _, _, err := wire.ReadFrame(bytes.NewReader(whole[:n]), wire.MaxFrame); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(n, err)
		}
	}
	if _, err := wire.AppendFrame(nil, wire.KindStart, make([]byte, wire.MaxFrame-1)); !errors.Is(err, wire.ErrTooLarge) {
		t.Fatal(err)
	}
}

func TestValidID(t *testing.T) {
	for id, want := range map[string]bool{
		"a": true, "exec_01ABC-x": true, "": false, ".": false, "..": false, "a/b": false, "_a": false, "a.b": false, "a\x00": false,
	} {
		if wire.ValidID(id) != want {
			t.Errorf("%q", id)
		}
	}
}

// Whatever is accepted is spelled in one way only.
func FuzzStatus(f *testing.F) {
	f.Add(wire.Status{How: wire.Exited, Value: 3, StartedUS: 1, FinishedUS: 2}.Append(nil))
	f.Add(wire.Status{How: wire.Signaled, Value: 9}.Append(nil))
	f.Add(wire.Status{How: wire.Lost}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := wire.ParseStatus(b); err == nil && !bytes.Equal(s.Append(nil), b) {
			t.Fatalf("%q became %q", b, s.Append(nil))
		}
	})
}

func FuzzPID(f *testing.F) {
	f.Add(wire.PIDRecord{PID: 7, StartTicks: 8, StartedUS: 9}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := wire.ParsePID(b); err == nil && !bytes.Equal(p.Append(nil), b) {
			t.Fatalf("%q became %q", b, p.Append(nil))
		}
	})
}

func FuzzFrame(f *testing.F) {
	start := &wire.Start{ID: "a", Argv: []string{"x"}, TTY: &wire.Size{Rows: 1}}
	for kind, payload := range map[wire.Kind][]byte{
		wire.KindStart:  start.Append(nil),
		wire.KindSignal: wire.Signal{ID: "a", Signal: 9, Group: true}.Append(nil),
		wire.KindStdin:  wire.Input{ID: "a", Data: []byte("x"), Close: true}.Append(nil),
		wire.KindResize: wire.Resize{ID: "a", Size: wire.Size{Rows: 24, Cols: 80}}.Append(nil),
		wire.KindForget: wire.AppendID(nil, "a"),
		wire.KindError:  wire.Failure{Code: "busy", Message: "m"}.Append(nil),
		wire.KindOK:     wire.AppendProcesses(nil, []wire.Process{{ID: "a", PID: 1}}),
	} {
		frame, err := wire.AppendFrame(nil, kind, payload)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, p, err := wire.ReadFrame(bytes.NewReader(b), wire.MaxFrame)
		if err != nil {
			return
		}
		same := func(again []byte) {
			if !bytes.Equal(again, p) {
				t.Fatalf("%q became %q", p, again)
			}
		}
		if m, err := wire.ParseStart(p); err == nil {
			same(m.Append(nil))
		}
		if m, err := wire.ParseSignal(p); err == nil {
			same(m.Append(nil))
		}
		if m, err := wire.ParseInput(p); err == nil {
			same(m.Append(nil))
		}
		if m, err := wire.ParseResize(p); err == nil {
			same(m.Append(nil))
		}
		if m, err := wire.ParseStarted(p); err == nil {
			same(m.Append(nil))
		}
		if m, err := wire.ParseFailure(p); err == nil {
			same(m.Append(nil))
		}
		if m, err := wire.ParseProcesses(p); err == nil {
			same(wire.AppendProcesses(nil, m))
		}
	})
}
