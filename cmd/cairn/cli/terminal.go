package cli

import (
	"os"

	"golang.org/x/term"

	"cairn/api/types"
)

// inputTerminal returns the descriptor of the terminal that is this program's input.
func (a *app) inputTerminal() (fd int, ok bool) {
	f, isFile := a.In.(*os.File)
	if !isFile {
		return 0, false
	}
	fd = int(f.Fd())
	return fd, term.IsTerminal(fd)
}

// terminalSize is that of the terminal which shows the output, or, without one, of
// the one that input comes from; else nil.
func (a *app) terminalSize() *types.TerminalSize {
	for _, s := range []any{a.Out, a.In} {
		if f, ok := s.(*os.File); ok {
			if cols, rows, err := term.GetSize(int(f.Fd())); err == nil && cols > 0 && rows > 0 {
				return &types.TerminalSize{Rows: rows, Cols: cols}
			}
		}
	}
	return nil
}

// raw hands every key on as it is typed, until restore is called. Without a
// terminal it does nothing.
func (a *app) raw() (restore func(), err error) {
	fd, ok := a.inputTerminal()
	if !ok {
		return func() {}, nil
	}
	state, err := term.MakeRaw(fd)
	if err != nil {
		return nil, err
	}
	// Nobody is there to hear that it failed: the terminal is gone.
	return func() { _ = term.Restore(fd, state) }, nil
}
