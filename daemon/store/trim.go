package store

// trimEvery is how many records may pile up beyond a bound before they are
// trimmed together.
const trimEvery = 64

// trimmer keeps what would grow for ever within its bounds. Its counts are
// hints: a transaction that is rolled back only makes the next trim come early.
type trimmer struct {
	finished map[string]int // by sandbox: processes finished since they were last trimmed
}

// events drops all but the newest keep events, seq being the newest one's number.
func (t *trimmer) events(c *conn, seq int64, keep int) error {
	if seq%trimEvery != 0 {
		return nil
	}
	_, err := c.run(`DELETE FROM events WHERE seq <= ?`, seq-int64(keep))
	return err
}

// processes drops all but the newest keep finished processes of the sandbox.
func (t *trimmer) processes(c *conn, sandboxID string, keep int) error {
	t.finished[sandboxID]++
	if t.finished[sandboxID] < trimEvery {
		return nil
	}
	t.finished[sandboxID] = 0
	_, err := c.run(`DELETE FROM processes WHERE rowid IN (
		SELECT rowid FROM processes WHERE sandbox_id = ? AND finished = 1
		ORDER BY started_at DESC, id DESC LIMIT -1 OFFSET ?)`, sandboxID, keep)
	return err
}
