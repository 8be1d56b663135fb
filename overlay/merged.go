package overlay

import (
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A mergedDir is a directory as overlayfs shows it: the directories of that
// path in the layers, top first, down to the one that hides those below.
type mergedDir struct {
	parts []part
	// cut says that something in the layers, an opaque marker or what is
	// no directory, hides whatever lies below them.
	cut bool
}

// part is a layer's share of a merged directory.
type part struct {
	layer int
	dir   *os.File
}

func (m *mergedDir) close() {
	for _, p := range m.parts {
		p.dir.Close()
	}
}

// openMerged opens the root of a stack of layers. The layer directories stay
// the caller's.
func (p *Pool) openMerged(layers []string) (*mergedDir, error) {
	m := &mergedDir{}
	for i, id := range layers {
		d, err := p.openLayer(id)
		if err != nil {
			m.close()
			return nil, err
		}
		m.parts = append(m.parts, part{i, d})
	}
	return m, nil
}

// openStack opens the root of a stack, with the skeleton below the layers.
func (p *Pool) openStack(layers []string) (*mergedDir, error) {
	m, err := p.openMerged(layers)
	if err != nil {
		return nil, err
	}
	d, err := openDir(unix.AT_FDCWD, p.Skeleton())
	if err != nil {
		m.close()
		return nil, err
	}
	m.parts = append(m.parts, part{len(layers), d})
	return m, nil
}

// mergedEntry is what a name in a merged directory stands for.
type mergedEntry struct {
	part part // the layer that it is in, whose metadata it has
	st   unix.Stat_t
	// below: for a directory, the parts under the first that have it too.
	below []part // their dir is the parent's
	cut   bool   // for a directory: what mergedDir.cut will be
}

// lookup finds a name. The result is nil if there is none or it is hidden;
// whiteout says that some layer hides it.
func (m *mergedDir) lookup(name string) (e *mergedEntry, whiteout bool, err error) {
	for _, p := range m.parts {
		st, err := lstatAt(int(p.dir.Fd()), name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		switch {
		case isWhiteout(&st):
			if e == nil {
				return nil, true, nil
			}
			e.cut = true
			return e, false, nil
		case !isDir(&st):
			if e == nil {
				return &mergedEntry{part: p, st: st}, false, nil
			}
			e.cut = true
			return e, false, nil
		}
		if e == nil {
			e = &mergedEntry{part: p, st: st}
		} else {
			e.below = append(e.below, p)
		}
		d, err := openDir(int(p.dir.Fd()), name)
		if err != nil {
			return nil, false, err
		}
		opaque, err := isOpaque(int(d.Fd()))
		d.Close()
		if err != nil {
			return nil, false, err
		}
		if opaque {
			e.cut = true
			return e, false, nil
		}
	}
	if e != nil && isDir(&e.st) && m.cut {
		e.cut = true
	}
	return e, false, nil
}

// open opens a directory that lookup found.
func (e *mergedEntry) open(name string) (*mergedDir, error) {
	m := &mergedDir{cut: e.cut}
	for _, p := range append([]part{e.part}, e.below...) {
		d, err := openDir(int(p.dir.Fd()), name)
		if err != nil {
			m.close()
			return nil, err
		}
		m.parts = append(m.parts, part{p.layer, d})
	}
	return m, nil
}

// names lists every name that any of the parts has, hidden ones included.
func names(parts []part) ([]string, error) {
	if len(parts) == 1 {
		return readNames(parts[0].dir)
	}
	var all []string
	for _, p := range parts {
		ns, err := readNames(p.dir)
		if err != nil {
			return nil, err
		}
		all = append(all, ns...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// Found is where a path of a stack is.
type Found struct {
	// Layer indexes the stack: the topmost layer that has the path, or the
	// one that hides it. It is -1 when no layer says anything about it.
	Layer  int
	Hidden bool   // deleted, or below something that is no directory
	Mode   uint32 // type and permissions, if it is there
}

// Exists says whether the stack has the path.
func (f Found) Exists() bool { return f.Layer >= 0 && !f.Hidden }

// Lookup finds a path, relative to the root, in layers, top first. It follows
// no symbolic link. It doesn't know of the skeleton.
func (p *Pool) Lookup(layers []string, path string) (Found, error) {
	m, err := p.openMerged(layers)
	if err != nil {
		return Found{}, err
	}
	defer func() { m.close() }()
	path = strings.Trim(path, "/")
	if path == "" || path == "." {
		if len(m.parts) == 0 {
			return Found{Layer: -1}, nil
		}
		var st unix.Stat_t
		err := unix.Fstat(int(m.parts[0].dir.Fd()), &st)
		return Found{Layer: 0, Mode: st.Mode}, err
	}
	elems := strings.Split(path, "/")
	for i, name := range elems {
		e, hidden, err := m.lookup(name)
		if err != nil {
			return Found{}, err
		}
		if e == nil {
			f := Found{Layer: -1, Hidden: hidden || m.cut}
			if hidden {
				f.Layer = m.hider(name)
			}
			return f, nil
		}
		if i == len(elems)-1 {
			return Found{Layer: e.part.layer, Mode: e.st.Mode}, nil
		}
		if !isDir(&e.st) {
			return Found{Layer: e.part.layer, Hidden: true}, nil
		}
		next, err := e.open(name)
		if err != nil {
			return Found{}, err
		}
		m.close()
		m = next
	}
	return Found{Layer: -1}, nil
}

// hider is the layer whose whiteout hides a name.
func (m *mergedDir) hider(name string) int {
	for _, p := range m.parts {
		if st, err := lstatAt(int(p.dir.Fd()), name); err == nil && isWhiteout(&st) {
			return p.layer
		}
	}
	return -1
}
