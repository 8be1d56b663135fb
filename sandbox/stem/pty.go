package stem

import (
	"context"

	"cairn/sandbox/stem/wire"
)

// Size of a terminal in characters.
type Size = wire.Size

// Resize changes the size of the terminal of a process started with TTY; its foreground
// processes get SIGWINCH when it differs. BadRequest: it has no terminal.
func (c *Client) Resize(ctx context.Context, id string, size Size) error {
	const op = "resize"
	if err := checkID(op, id); err != nil {
		return err
	}
	_, err := c.call(ctx, op, wire.KindResize, wire.Resize{ID: id, Size: size}.Append(nil))
	return err
}
