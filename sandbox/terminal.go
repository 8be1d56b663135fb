package sandbox

import "context"

// TTY is the size of a terminal in characters.
type TTY struct{ Rows, Cols uint16 }

func (t *TTY) check(field string) error {
	if t.Rows == 0 || t.Cols == 0 {
		return Invalid(field, "rows and cols from 1 to 65535")
	}
	return nil
}

// Resize changes the size of a process's terminal. CodeInvalid: it has none;
// CodeConflict: the process has ended.
func (s *Service) Resize(ctx context.Context, idOrName, procID string, size TTY) error {
	if err := size.check("size"); err != nil {
		return err
	}
	g, proc, err := s.guest(ctx, idOrName, procID)
	if err != nil {
		return err
	}
	if !proc.TTY {
		return Invalid("exec_id", "process %s has no terminal", procID)
	}
	if proc.State != ProcessRunning {
		return Errorf(CodeConflict, "process %s has ended", procID)
	}
	return g.Resize(ctx, procID, size)
}

// OutputRange says which bytes of a stream can be read now: those from start up
// to end. Only of a terminal is what came first not kept for ever.
func (s *Service) OutputRange(ctx context.Context, idOrName, procID string, stream Stream) (start, end int64, err error) {
	g, _, err := s.guest(ctx, idOrName, procID)
	if err != nil {
		return 0, 0, err
	}
	return g.OutputRange(procID, stream)
}
