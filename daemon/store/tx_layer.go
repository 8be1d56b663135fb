package store

import "cairn/sandbox"

func (t *tx) Layer(id string) (sandbox.Layer, error) {
	return one[sandbox.Layer](t.c, "layer", id, `SELECT data FROM layers WHERE id = ?`, id)
}

func (t *tx) PutLayer(l sandbox.Layer) error {
	data, err := encode(l)
	if err != nil {
		return err
	}
	_, err = t.c.run(`INSERT INTO layers (id, data) VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET data = ?2`, l.ID, data)
	return translate(err)
}

// DeleteLayer is nil also when there is none: not every layer in the pool is
// recorded.
func (t *tx) DeleteLayer(id string) error {
	_, err := t.c.run(`DELETE FROM layers WHERE id = ?`, id)
	return translate(err)
}

// references are the fields of any record that name layers.
type references struct {
	Upper, Identity, Captured, Layer, Images, PagesBase string
	Base, Below, Stack, Layers                          []string
}

// LayersInUse reads the references out of the records themselves. That costs
// time in proportion to all of them, which only the collector of unused layers
// pays; in return no write pays for an index of references.
func (t *tx) LayersInUse() (map[string]bool, error) {
	used := map[string]bool{}
	err := t.c.each(`SELECT data FROM images UNION ALL SELECT data FROM checkpoints
		UNION ALL SELECT data FROM sandboxes UNION ALL SELECT data FROM operations`, nil,
		func(scan func(...any) error) error {
			var data string
			if err := scan(&data); err != nil {
				return err
			}
			r, err := decode[references](data)
			if err != nil {
				return err
			}
			for _, ids := range [][]string{{r.Upper, r.Identity, r.Captured, r.Layer, r.Images, r.PagesBase}, r.Base, r.Below, r.Stack, r.Layers} {
				for _, id := range ids {
					used[id] = true
				}
			}
			return nil
		})
	delete(used, "")
	return used, translate(err)
}

// Operations lists the journal, oldest first.
func (t *tx) Operations() ([]sandbox.Operation, error) {
	return all[sandbox.Operation](t.c, `SELECT data FROM operations ORDER BY started_at, id`)
}

func (t *tx) PutOperation(o sandbox.Operation) error {
	data, err := encode(o)
	if err != nil {
		return err
	}
	_, err = t.c.run(`INSERT INTO operations (id, started_at, data) VALUES (?1, ?2, ?3)
		ON CONFLICT (id) DO UPDATE SET started_at = ?2, data = ?3`, o.ID, nanos(o.StartedAt), data)
	return translate(err)
}

// DeleteOperation is nil also when there is none: whoever finishes an entry may
// find it finished.
func (t *tx) DeleteOperation(id string) error {
	_, err := t.c.run(`DELETE FROM operations WHERE id = ?`, id)
	return translate(err)
}
