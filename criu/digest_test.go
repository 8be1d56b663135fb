package criu_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cairn/criu"
)

// digest is that of a directory, and the error's code if there is none.
func digest(t testing.TB, images *os.File) (string, int64) {
	t.Helper()
	d, n, err := criu.Digest(images)
	var e *criu.Error
	if errors.As(err, &e) {
		return string(e.Code), 0
	}
	check(t, err)
	return d, n
}

// Whatever is altered in the images, also of compacted ones, they have another digest.
func TestDigest(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	images := newImages(t)
	_, err := c.Dump(t.Context(), b.target(), images, criu.DumpOptions{LeaveRunning: true})
	check(t, err)
	dir := images.Name()
	for _, d := range []string{"parent", "parent/parent"} {
		check(t, os.Mkdir(filepath.Join(dir, d), 0o700))
		check(t, os.Link(filepath.Join(dir, "pagemap-300.img"), filepath.Join(dir, d, "pagemap-300.img")))
		check(t, os.Link(filepath.Join(dir, "pages-1.img"), filepath.Join(dir, d, "pages-1.img")))
	}
	want, size := digest(t, images)
	var total int64
	var files []string
	check(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && e.Name() != "stats-dump" {
			fi, err := e.Info()
			check(t, err)
			total += fi.Size()
			files = append(files, path)
		}
		return err
	}))
	if size != total || len(want) != 64 {
		t.Fatalf("%d bytes, want %d; %s", size, total, want)
	}
	differs := func(what string) {
		t.Helper()
		if got, _ := digest(t, images); got == want {
			t.Errorf("%s was not noticed", what)
		}
	}
	for _, path := range files {
		was, err := os.ReadFile(path)
		check(t, err)
		changed := bytes.Clone(was)
		if changed[len(changed)/2] ^= 1; strings.Contains(path, "/pages-") {
			changed = changed[1:]
		}
		// A file of its own: others of that inode stay.
		check(t, os.Rename(path, path+".was"))
		check(t, os.WriteFile(path, changed, 0o600))
		hidden := filepath.Join(t.TempDir(), "was")
		check(t, os.Rename(path+".was", hidden))
		differs(path)
		check(t, os.Remove(path))
		differs("the lack of " + path)
		check(t, os.Symlink(hidden, path))
		if got, _ := digest(t, images); got != string(criu.CodeImages) {
			t.Errorf("%s is a link: %s", path, got)
		}
		check(t, os.Remove(path))
		check(t, os.Rename(hidden, path))
	}
	if got, _ := digest(t, images); got != want {
		t.Fatal("the same images have another digest")
	}
	extra := filepath.Join(dir, "parent/parent/extra")
	check(t, os.WriteFile(extra, nil, 0o600))
	differs("a file more")
	check(t, os.Remove(extra))
	check(t, os.WriteFile(filepath.Join(dir, "stats-dump"), nil, 0o600))
	if got, _ := digest(t, images); got != want {
		t.Error("CRIU's figures count")
	}
	check(t, os.Mkdir(filepath.Join(dir, "parent/parent/parent"), 0o700))
	if got, _ := digest(t, images); got != string(criu.CodeImages) {
		t.Errorf("a directory too deep: %s", got)
	}
}
