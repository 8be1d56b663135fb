package stem

import "time"

// WithoutTick makes Wait and Follow look only when they are woken.
func (c *Client) WithoutTick() { c.tick = 24 * time.Hour }
