package store

import "cairn/sandbox"

// Image finds one by id or name.
func (t *tx) Image(idOrName string) (sandbox.Image, error) {
	return one[sandbox.Image](t.c, "image", idOrName,
		`SELECT data FROM images WHERE id = ?1 UNION ALL SELECT data FROM images WHERE name = ?1 AND name <> '' LIMIT 1`, idOrName)
}

func (t *tx) Images(p sandbox.Page) (sandbox.List[sandbox.Image], error) {
	l, err := listPage(t.c, "images", "data", cursorImages, selection{}, p, row[sandbox.Image])
	return l, translate(err)
}

// PutImage records an image. Names are unique, but any number may have none.
func (t *tx) PutImage(i sandbox.Image) error {
	data, err := encode(i)
	if err != nil {
		return err
	}
	_, err = t.c.run(`INSERT INTO images (id, name, created_at, data) VALUES (?1, ?2, ?3, ?4)
		ON CONFLICT (id) DO UPDATE SET name = ?2, created_at = ?3, data = ?4`,
		i.ID, i.Name, nanos(i.CreatedAt), data)
	if isTaken(err) {
		return sandbox.Wrap(err, sandbox.CodeConflict, "there is an image with the name %q already", i.Name)
	}
	return translate(err)
}

func (t *tx) DeleteImage(id string) error {
	var sandboxes, checkpoints int64
	if _, err := t.c.get(`SELECT (SELECT count(*) FROM sandboxes WHERE image_id = ?1), (SELECT count(*) FROM checkpoints WHERE image_id = ?1)`,
		[]any{id}, &sandboxes, &checkpoints); err != nil {
		return translate(err)
	}
	if sandboxes+checkpoints > 0 {
		return sandbox.Errorf(sandbox.CodeInUse, "the image is in use by %d sandboxes and %d checkpoints; delete those first", sandboxes, checkpoints)
	}
	return t.change("image", id, `DELETE FROM images WHERE id = ?`, id)
}
