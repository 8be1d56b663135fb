package helper

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// writeTree makes a directory with the image of a tree.
func writeTree(t *testing.T, tree []member) *os.File {
	t.Helper()
	var messages [][]byte
	for _, m := range tree {
		e := number(number(nil, 1, uint64(m.pid)), 2, uint64(m.parent))
		e = number(number(e, 3, uint64(m.pid)), 4, uint64(m.session))
		messages = append(messages, number(number(e, 5, 1), 6, uint64(m.pid)))
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, pstreeFile), image(messages...), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestSessions(t *testing.T) {
	root := member{300, 0, 300}
	for name, c := range map[string]struct {
		tree    []member
		orphans bool
		pid     int // of who is refused
	}{
		"commands":                          {tree: []member{root, {301, 300, 301}, {302, 301, 301}, {303, 302, 303}}},
		"an orphan, its session's leader":   {tree: []member{root, {301, 300, 301}}},
		"an orphan of a dead session":       {tree: []member{root, {302, 300, 301}, {303, 302, 301}}, orphans: true},
		"an orphan of a living session":     {tree: []member{root, {301, 300, 301}, {303, 300, 301}}, orphans: true},
		"born before its parent's session":  {tree: []member{root, {301, 300, 301}, {302, 301, 302}, {303, 302, 301}}},
		"born before an orphan's session":   {tree: []member{root, {302, 300, 302}, {303, 302, 301}}, pid: 303},
		"an orphan of another subreaper":    {tree: []member{root, {301, 300, 301}, {302, 301, 303}}, pid: 302},
		"an orphan of one in between":       {tree: []member{root, {301, 300, 301}, {302, 301, 302}, {304, 302, 303}}, pid: 304},
		"two parents' sessions at a time":   {tree: []member{root, {301, 300, 301}, {302, 301, 302}, {303, 302, 303}, {304, 303, 301}, {305, 303, 302}}, pid: 305},
		"a session that one is not born to": {tree: []member{root, {301, 300, 301}, {302, 300, 302}, {303, 302, 301}}, pid: 303},
	} {
		images := writeTree(t, c.tree)
		tree, err := members(images)
		if err != nil || len(tree) != len(c.tree) || orphans(tree) != c.orphans {
			t.Errorf("%s: read as %v, %v; orphans %v", name, tree, err, orphans(tree))
		}
		err = checkSessions(images, nil)
		var f *refusal
		if errors.As(err, &f) != (c.pid != 0) || err != nil && (f == nil || f.PID != c.pid || f.Code != "unsupported") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, tree := range map[string][]member{
		"nobody":    {},
		"no root":   {{301, 300, 301}},
		"no parent": {root, {301, 999, 302}},
	} {
		if err := checkSessions(writeTree(t, tree), nil); !errors.Is(err, errMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
