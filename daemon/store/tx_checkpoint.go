package store

import (
	"encoding/json"

	"cairn/sandbox"
)

func (t *tx) Checkpoint(id string) (sandbox.Checkpoint, error) {
	var parent, data string
	found, err := t.c.get(`SELECT parent, data FROM checkpoints WHERE id = ?`, []any{id}, &parent, &data)
	if err != nil {
		return sandbox.Checkpoint{}, translate(err)
	}
	if !found {
		return sandbox.Checkpoint{}, notFound("checkpoint", id)
	}
	c, err := decode[sandbox.Checkpoint](data)
	if err != nil {
		return c, err
	}
	c.Parent = parent
	err = t.children([]*sandbox.Checkpoint{&c})
	return c, translate(err)
}

func (t *tx) Checkpoints(f sandbox.CheckpointFilter, p sandbox.Page) (sandbox.List[sandbox.Checkpoint], error) {
	var sel selection
	if f.SandboxID != "" {
		sel.add("sandbox_id = ?", f.SandboxID)
	}
	if f.Name != "" {
		// The bare comparison alone would not let SQLite use the partial index.
		sel.add("name = ? AND name <> ''", f.Name)
	}
	sel.labels("checkpoint", "checkpoints.id", f.Labels)
	l, err := listPage(t.c, "checkpoints", "data, parent", cursorCheckpoints, sel, p, checkpointRow)
	if err != nil {
		return l, translate(err)
	}
	refs := make([]*sandbox.Checkpoint, len(l.Items))
	for i := range l.Items {
		refs[i] = &l.Items[i]
	}
	return l, translate(t.children(refs))
}

// AllCheckpoints reads every one, oldest first.
func (t *tx) AllCheckpoints() ([]sandbox.Checkpoint, error) {
	var out []sandbox.Checkpoint
	children := map[string][]string{}
	err := t.c.each(`SELECT created_at, id, data, parent FROM checkpoints ORDER BY created_at, id`, nil, func(scan func(...any) error) error {
		c, _, err := checkpointRow(scan)
		if err != nil {
			return err
		}
		out = append(out, c)
		if c.Parent != "" {
			children[c.Parent] = append(children[c.Parent], c.ID)
		}
		return nil
	})
	for i := range out {
		out[i].Children = children[out[i].ID]
	}
	return out, translate(err)
}

func checkpointRow(scan func(...any) error) (c sandbox.Checkpoint, p position, err error) {
	var data, parent string
	if err := scan(&p.at, &p.id, &data, &parent); err != nil {
		return c, p, err
	}
	c, err = decode[sandbox.Checkpoint](data)
	c.Parent = parent
	return c, p, err
}

// children fills in the children, oldest first, of all the given at once.
func (t *tx) children(of []*sandbox.Checkpoint) error {
	if len(of) == 0 {
		return nil
	}
	byID := make(map[string]*sandbox.Checkpoint, len(of))
	ids := make([]string, len(of))
	for i, c := range of {
		byID[c.ID], ids[i] = c, c.ID
	}
	list, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	return t.c.each(`SELECT parent, id FROM checkpoints
		WHERE parent <> '' AND parent IN (SELECT value FROM json_each(?)) ORDER BY created_at, id`,
		[]any{string(list)}, func(scan func(...any) error) error {
			var parent, id string
			if err := scan(&parent, &id); err != nil {
				return err
			}
			if c := byID[parent]; c != nil {
				c.Children = append(c.Children, id)
			}
			return nil
		})
}

// PutCheckpoint records c. Children and Skipped belong to answers and are not kept.
func (t *tx) PutCheckpoint(c sandbox.Checkpoint) error {
	c.Children, c.Skipped = nil, false
	data, err := encode(c)
	if err != nil {
		return err
	}
	labels, err := encodeLabels(c.Labels)
	if err != nil {
		return err
	}
	_, err = t.c.run(`INSERT INTO checkpoints (id, name, sandbox_id, parent, image_id, created_at, labels, data)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
		ON CONFLICT (id) DO UPDATE SET name = ?2, sandbox_id = ?3, parent = ?4, image_id = ?5, created_at = ?6, labels = ?7, data = ?8`,
		c.ID, c.Name, c.SandboxID, c.Parent, c.ImageID, nanos(c.CreatedAt), labels, data)
	return translate(err)
}

// DeleteCheckpoint gives the checkpoint's children its parent. Heads that name
// it are the caller's to move.
func (t *tx) DeleteCheckpoint(id string) error {
	if _, err := t.c.run(`UPDATE checkpoints SET parent = (SELECT c.parent FROM checkpoints c WHERE c.id = ?1)
		WHERE parent = ?1 AND parent <> '' AND EXISTS (SELECT 1 FROM checkpoints c WHERE c.id = ?1)`, id); err != nil {
		return translate(err)
	}
	return t.change("checkpoint", id, `DELETE FROM checkpoints WHERE id = ?`, id)
}
