package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"cairn/api/types"
)

// What goes to the agent and comes back; see package agent.
type (
	agentOp struct {
		Kind     string
		Path, To []byte
		Data     []byte
		Off      int64
		Mode     uint32
		UID, GID int
	}
	agentRequest struct {
		Chroot, Lower string
		Freeze        bool
		Ops           []agentOp
		List          []byte
	}
	agentFile struct {
		Path     []byte
		Type     string
		Mode     uint32
		UID, GID uint32
		Size     int64
		Sum      string
		Target   []byte
		Xattrs   map[string][]byte
		Same     []byte
		Mtime    int64
	}
	agentAnswer struct {
		Errors []string
		Files  []agentFile
	}
)

// tree is a listing, by path.
type tree map[string]agentFile

// worked is where random operations are done.
const worked = "/w"

func treeOf(files []agentFile) tree {
	t := tree{}
	for _, f := range files {
		t[string(f.Path)] = f
	}
	return t
}

func (f agentFile) String() string {
	s := fmt.Sprintf("%s %04o %d:%d", f.Type, f.Mode, f.UID, f.GID)
	if f.Type == "file" {
		s += fmt.Sprintf(" %d %.12s", f.Size, f.Sum)
	}
	if f.Type == "symlink" {
		s += fmt.Sprintf(" -> %q", f.Target)
	}
	for _, k := range slices.Sorted(maps.Keys(f.Xattrs)) {
		s += fmt.Sprintf(" %s=%x", k, f.Xattrs[k])
	}
	if f.Same != nil {
		s += fmt.Sprintf(" same as %q", f.Same)
	}
	if f.Mtime != 0 {
		s += fmt.Sprintf(" set to %d", f.Mtime)
	}
	return s
}

// unlike says how two trees differ, "" for not at all.
func unlike(got, want tree) string {
	var b strings.Builder
	for _, p := range slices.Sorted(maps.Keys(union(got, want))) {
		g, inGot := got[p]
		w, inWant := want[p]
		switch {
		case !inGot:
			fmt.Fprintf(&b, "\n  %q is missing: %s", p, w)
		case !inWant:
			fmt.Fprintf(&b, "\n  %q should not be there: %s", p, g)
		case g.String() != w.String():
			fmt.Fprintf(&b, "\n  %q is %s\n      expected %s", p, g, w)
		}
	}
	return b.String()
}

func union(a, b tree) tree {
	u := maps.Clone(a)
	maps.Copy(u, b)
	return u
}

// inside has the agent in a sandbox do what is asked.
func (h *host) inside(t fataler, id string, r agentRequest) agentAnswer {
	t.Helper()
	in, err := json.Marshal(r)
	done(t, err)
	res := ok(h.exec(id, types.Exec{Command: []string{agentPath, "run"}, Stdin: ptr(string(in))}))(t)
	return parse(t, []byte(res.Stdout), res.Stderr, res.ExitCode == 0)
}

func parse(t fataler, out []byte, stderr string, succeeded bool) (a agentAnswer) {
	t.Helper()
	if !succeeded {
		t.Fatalf("the agent failed: %s", stderr)
	}
	done(t, json.Unmarshal(out, &a))
	return a
}

func (h *host) list(t fataler, id string) tree {
	t.Helper()
	return treeOf(h.inside(t, id, agentRequest{List: []byte(worked)}).Files)
}

// oracle is a plain directory that has what a sandbox should have.
type oracle struct {
	dir string // its root; dir+".lower" remembers hard links
}

// oracleBase is what root in an oracle is on the host: it has a user namespace
// too, so that the kernel's rules for privileges are the same.
const oracleBase = 200 << 16

func (o oracle) run(t fataler, r agentRequest) agentAnswer {
	t.Helper()
	r.Chroot, r.Lower = o.dir, o.dir+".lower"
	in, err := json.Marshal(r)
	done(t, err)
	cmd := exec.Command(thePrograms().agent, "run")
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &stdout, &stderr
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: oracleBase, Size: 1 << 16}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
		GidMappingsEnableSetgroups: true, Credential: &syscall.Credential{},
	}
	err = cmd.Run()
	return parse(t, stdout.Bytes(), fmt.Sprint(stderr.String(), err), err == nil)
}

func newOracle(t fataler, dir string) oracle {
	t.Helper()
	done(t, errors.Join(os.MkdirAll(filepath.Join(dir, worked), 0o755), os.WriteFile(dir+".lower", nil, 0o600)))
	for _, p := range []string{dir, filepath.Join(dir, worked), dir + ".lower"} {
		done(t, os.Chown(p, oracleBase, oracleBase))
	}
	return oracle{dir}
}

func (o oracle) list(t fataler) tree {
	t.Helper()
	return treeOf(o.run(t, agentRequest{List: []byte(worked)}).Files)
}

// freeze makes everything there what is below the upper.
func (o oracle) freeze(t fataler) { t.Helper(); o.run(t, agentRequest{Freeze: true}) }

// copyTo makes another oracle with the same files.
func (o oracle) copyTo(t fataler, dir string) oracle {
	t.Helper()
	done(t, errors.Join(os.RemoveAll(dir), os.RemoveAll(dir+".lower")))
	for _, suffix := range []string{"", ".lower"} {
		if out, err := exec.Command("cp", "-a", o.dir+suffix, dir+suffix).CombinedOutput(); err != nil {
			t.Fatalf("copy an oracle: %v: %s", err, out)
		}
	}
	return oracle{dir}
}

// treeInTar reads a tar of the worked directory.
func treeInTar(r io.Reader) (tree, error) {
	const xattr = "SCHILY.xattr."
	all := tree{}
	for t := tar.NewReader(r); ; {
		head, err := t.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		f := agentFile{Mode: uint32(head.Mode), UID: uint32(head.Uid), GID: uint32(head.Gid)}
		switch head.Typeflag {
		case tar.TypeReg:
			f.Type, f.Size = "file", head.Size
			sum := sha256.New()
			if _, err := io.Copy(sum, t); err != nil {
				return nil, err
			}
			f.Sum = hex.EncodeToString(sum.Sum(nil))
		case tar.TypeDir:
			f.Type = "directory"
		case tar.TypeSymlink:
			f.Type, f.Target = "symlink", []byte(head.Linkname)
		case tar.TypeFifo:
			f.Type = "fifo"
		case tar.TypeLink:
			first := all[path(head.Linkname)]
			first.Same = []byte(path(head.Linkname))
			all[path(head.Linkname)] = first
			f = first
		default:
			return nil, fmt.Errorf("%q has type %c", head.Name, head.Typeflag)
		}
		for k, v := range head.PAXRecords {
			if name, found := strings.CutPrefix(k, xattr); found && head.Typeflag != tar.TypeLink {
				if f.Xattrs == nil {
					f.Xattrs = map[string][]byte{}
				}
				f.Xattrs[name] = []byte(v)
			}
		}
		const setNanos = 123456789 // the agent marks times with it
		if head.ModTime.Nanosecond() == setNanos {
			f.Mtime = head.ModTime.Unix()
		}
		f.Path = []byte(path(head.Name))
		all[path(head.Name)] = f
	}
}

// path gives the path in the sandbox of a name in a tar of the worked directory.
func path(name string) string { return filepath.Join(worked, name) }

// changed is what a diff between two trees must say.
func changed(a, b tree) (list []string) {
	for p := range union(a, b) {
		x, inA := a[p]
		y, inB := b[p]
		var kind string
		switch {
		case !inB:
			kind = "deleted"
		case !inA:
			kind = "added"
		case x.Type != y.Type:
			kind = "type_changed"
		case x.Size != y.Size || x.Sum != y.Sum || !bytes.Equal(x.Target, y.Target):
			kind = "modified"
		case x.Mode != y.Mode || x.UID != y.UID || x.GID != y.GID || !maps.EqualFunc(x.Xattrs, y.Xattrs, bytes.Equal):
			kind = "metadata_changed"
		default:
			continue
		}
		list = append(list, fmt.Sprintf("%q %s", p, kind))
	}
	slices.Sort(list)
	return list
}
