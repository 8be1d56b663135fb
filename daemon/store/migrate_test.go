package store

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"cairn/sandbox"
)

func sqlExec(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, q := range statements {
		if _, err := db.Exec(q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

// A database of every former version is brought up to date with what it holds.
func TestMigrations(t *testing.T) {
	ctx := context.Background()
	newest := int64(0)
	for version := int64(1); version == 1 || version <= newest; version++ {
		path := filepath.Join(t.TempDir(), "cairn.db")
		db, err := sql.Open("sqlite", dsn(path, "journal_mode(WAL)"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := provider(db)
		if err != nil {
			t.Fatal(err)
		}
		sources := p.ListSources()
		newest = sources[len(sources)-1].Version
		if _, err := p.UpTo(ctx, version); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		sqlExec(t, path, "PRAGMA application_id = 1668443697",
			`INSERT INTO sandboxes VALUES ('sbx_1', 'one', 'running', 'img_1', 5, '{"a":"b"}', '{"ID":"sbx_1","Name":"one","State":"running","Labels":{"a":"b"},"Base":["l1"]}')`,
			`INSERT INTO events (data) VALUES ('{"Type":"x"}')`,
			`UPDATE counters SET value = 41 WHERE name = 'project'`)
		s := open(t, path, Options{})
		update(t, s, func(tx sandbox.Tx) error {
			l := must(tx.Sandboxes(sandbox.SandboxFilter{Labels: map[string]string{"a": "b"}}, sandbox.Page{}))
			if len(l.Items) != 1 || l.Items[0].Name != "one" || !must(tx.LayersInUse())["l1"] {
				t.Errorf("version %d: %+v", version, l)
			}
			same(t, 42, must(tx.NextProject()))
			same(t, 1, must(tx.LastEvent()))
			return nil
		})
		if _, fresh, err := s.Reserve(ctx, "s", "k", "h"); err != nil || !fresh {
			t.Errorf("version %d: %v", version, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

var updateGolden = flag.Bool("update", false, "write testdata/records.json anew")

// What databases hold already must stay readable: a field of a record that is
// renamed or removed would silently lose its value. New fields are fine.
func TestRecordsStayReadable(t *testing.T) {
	records := map[string]any{
		"sandbox": &sandbox.Sandbox{}, "checkpoint": &sandbox.Checkpoint{}, "image": &sandbox.Image{}, "process": &sandbox.Process{},
		"layer": &sandbox.Layer{}, "operation": &sandbox.Operation{}, "event": &sandbox.Event{},
	}
	const file = "testdata/records.json"
	if *updateGolden {
		for _, r := range records {
			fill(reflect.ValueOf(r).Elem())
		}
		b, err := json.MarshalIndent(records, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, append(b, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var golden map[string]json.RawMessage
	if err := json.Unmarshal(b, &golden); err != nil {
		t.Fatal(err)
	}
	for name, r := range records {
		d := json.NewDecoder(bytes.NewReader(golden[name]))
		d.DisallowUnknownFields()
		if err := d.Decode(r); err != nil {
			t.Errorf("%s: %v: a migration is needed", name, err)
		}
	}
}

// fill gives every field some value.
func fill(v reflect.Value) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(epoch))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Interface:
		v.Set(reflect.ValueOf("x"))
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint32:
		v.SetUint(1)
	default:
		panic("a kind of field that this test does not know: " + v.Type().String())
	}
}
