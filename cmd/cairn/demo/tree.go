package demo

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"cairn/api/client"
	"cairn/api/types"
)

// tree describes every file below a directory, by path: type, mode, owner, and the
// SHA-256 of its content or where it points.
type tree map[string]string

// read downloads a directory of a sandbox as a tar, and describes what is in it.
// The bytes also go to w, unless it is nil.
func (d *demo) read(ctx context.Context, sandbox, dir string, w io.Writer) (tree, error) {
	body, _, err := client.Body(d.cairn.ReadFile(ctx, sandbox, &types.ReadFileParams{Path: dir}, client.Accept("application/x-tar")))
	if err != nil {
		return nil, err
	}
	defer body.Close()
	in := io.Reader(body)
	if w != nil {
		in = io.TeeReader(body, w)
	}
	t := tree{}
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, in) // the padding at the end
			return t, err
		}
		if err != nil {
			return nil, err
		}
		sum := sha256.New()
		if _, err := io.Copy(sum, r); err != nil {
			return nil, err
		}
		t[h.Name] = fmt.Sprintf("%c %04o %d:%d %s %s", h.Typeflag, h.Mode, h.Uid, h.Gid, h.Linkname, hex.EncodeToString(sum.Sum(nil)))
	}
}

// save is read, with the tar kept in a file.
func (d *demo) save(ctx context.Context, sandbox, dir, file string) (tree, error) {
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	t, err := d.read(ctx, sandbox, dir, f)
	return t, errors.Join(err, f.Close())
}

// differing counts the paths that are not the same in both.
func (t tree) differing(other tree) int {
	n := 0
	for path, what := range t {
		if other[path] != what {
			n++
		}
	}
	for path := range other {
		if _, ok := t[path]; !ok {
			n++
		}
	}
	return n
}

// changed is what a unified diff adds and removes.
func changed(diff string) string {
	var lines []string
	for line := range strings.Lines(diff) {
		if (line[0] == '+' || line[0] == '-') && !strings.HasPrefix(line, "+++") && !strings.HasPrefix(line, "---") {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	return strings.Join(lines, "\n")
}
