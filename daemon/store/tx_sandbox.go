package store

import "cairn/sandbox"

// Sandbox finds one by id or name. An id goes before a name that looks like one.
func (t *tx) Sandbox(idOrName string) (sandbox.Sandbox, error) {
	return one[sandbox.Sandbox](t.c, "sandbox", idOrName,
		`SELECT data FROM sandboxes WHERE id = ?1 UNION ALL SELECT data FROM sandboxes WHERE name = ?1 LIMIT 1`, idOrName)
}

func (t *tx) Sandboxes(f sandbox.SandboxFilter, p sandbox.Page) (sandbox.List[sandbox.Sandbox], error) {
	var sel selection
	if f.State != "" {
		sel.add("state = ?", string(f.State))
	}
	sel.labels("sandbox", "sandboxes.id", f.Labels)
	l, err := listPage(t.c, "sandboxes", "data", cursorSandboxes, sel, p, row[sandbox.Sandbox])
	return l, translate(err)
}

func (t *tx) CountSandboxes() (int, error) {
	var n int
	_, err := t.c.get(`SELECT count(*) FROM sandboxes`, nil, &n)
	return n, translate(err)
}

func (t *tx) PutSandbox(s sandbox.Sandbox) error {
	data, err := encode(s)
	if err != nil {
		return err
	}
	labels, err := encodeLabels(s.Labels)
	if err != nil {
		return err
	}
	_, err = t.c.run(`INSERT INTO sandboxes (id, name, state, image_id, created_at, labels, data)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
		ON CONFLICT (id) DO UPDATE SET name = ?2, state = ?3, image_id = ?4, created_at = ?5, labels = ?6, data = ?7`,
		s.ID, s.Name, string(s.State), s.ImageID, nanos(s.CreatedAt), labels, data)
	if isTaken(err) {
		return sandbox.Wrap(err, sandbox.CodeConflict, "there is a sandbox with the name %q already", s.Name)
	}
	return translate(err)
}

// DeleteSandbox takes the sandbox's processes with it.
func (t *tx) DeleteSandbox(id string) error {
	delete(t.s.trim.finished, id)
	return t.change("sandbox", id, `DELETE FROM sandboxes WHERE id = ?`, id)
}

func (t *tx) Process(sandboxID, id string) (sandbox.Process, error) {
	return one[sandbox.Process](t.c, "process", id,
		`SELECT data FROM processes WHERE sandbox_id = ? AND id = ?`, sandboxID, id)
}

// Processes lists the sandbox's processes, newest first.
func (t *tx) Processes(sandboxID string) ([]sandbox.Process, error) {
	return all[sandbox.Process](t.c,
		`SELECT data FROM processes WHERE sandbox_id = ? ORDER BY started_at DESC, id DESC`, sandboxID)
}

// PutProcess records p; the sandbox must be there. Of the finished ones only
// the newest are kept.
func (t *tx) PutProcess(p sandbox.Process) error {
	data, err := encode(p)
	if err != nil {
		return err
	}
	finished := p.State != sandbox.ProcessRunning
	_, err = t.c.run(`INSERT INTO processes (sandbox_id, id, finished, started_at, data)
		VALUES (?1, ?2, ?3, ?4, ?5)
		ON CONFLICT (sandbox_id, id) DO UPDATE SET finished = ?3, started_at = ?4, data = ?5`,
		p.SandboxID, p.ID, finished, nanos(p.StartedAt), data)
	if isOrphan(err) {
		return notFound("sandbox", p.SandboxID)
	}
	if err != nil {
		return translate(err)
	}
	if finished {
		return translate(t.s.trim.processes(t.c, p.SandboxID, t.s.opt.KeepProcesses))
	}
	return nil
}

func (t *tx) DeleteProcess(sandboxID, id string) error {
	return t.change("process", id, `DELETE FROM processes WHERE sandbox_id = ? AND id = ?`, sandboxID, id)
}
