package overlay

import (
	"context"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Kind says what became of a path.
type Kind string

// The kinds of change. Of several that apply, the first of this list is
// given: a file whose content and mode differ is modified.
const (
	Added           Kind = "added"
	Deleted         Kind = "deleted"
	TypeChanged     Kind = "type_changed"
	Modified        Kind = "modified"         // content, link target or device number
	ModeChanged     Kind = "mode_changed"     // permission bits
	MetadataChanged Kind = "metadata_changed" // owner or extended attributes
)

// Change is a path that differs between two stacks. Of what a stack doesn't
// have, size and mode are 0.
type Change struct {
	Path             string // without a leading slash; "." is the root
	Kind             Kind
	OldSize, NewSize int64  // bytes
	OldMode, NewMode uint32 // st_mode, type included
}

// Diff tells visit of every path that differs between the stacks a and b, top
// first, as a tree walk meets them: a directory before what is in it,
// siblings in the order of their names' bytes. Layers that both have at the
// bottom are only looked at where a layer above hides something of them.
// Content is compared where metadata doesn't tell. That a file was only
// touched or given another name among its hard links is no change.
// visit's error ends the walk and is returned.
func (p *Pool) Diff(ctx context.Context, a, b []string, visit func(Change) error) error {
	common := 0
	for common < len(a) && common < len(b) && a[len(a)-1-common] == b[len(b)-1-common] {
		common++
	}
	x, err := p.openStack(a)
	if err != nil {
		return err
	}
	defer x.close()
	y, err := p.openStack(b)
	if err != nil {
		return err
	}
	defer y.close()
	d := &differ{ctx: ctx, visit: visit, shared: [2]int{len(a) - common, len(b) - common}}
	if err := d.roots(x, y); err != nil {
		return err
	}
	return d.dirs(x, y, "")
}

type differ struct {
	ctx    context.Context
	visit  func(Change) error
	shared [2]int // of each stack, the index of the first common layer
}

func (d *differ) roots(x, y *mergedDir) error {
	var xst, yst unix.Stat_t
	a, b := x.parts[0].dir, y.parts[0].dir
	if err := unix.Fstat(int(a.Fd()), &xst); err != nil {
		return err
	}
	if err := unix.Fstat(int(b.Fd()), &yst); err != nil {
		return err
	}
	return d.both(".", a, ".", &xst, b, &yst)
}

// dirs compares two directories; either may be nil.
func (d *differ) dirs(x, y *mergedDir, prefix string) error {
	if d.ctx.Err() != nil {
		return context.Cause(d.ctx)
	}
	all, err := d.candidates(x, y)
	if err != nil {
		return fmt.Errorf("overlay: diff: %q: %w", prefix, err)
	}
	for _, name := range all {
		if err := d.name(x, y, name, prefix+name); err != nil {
			return err
		}
	}
	return nil
}

// candidates lists the names that can differ: those in layers that only one
// side has, unless the two see different ones of the common layers.
func (d *differ) candidates(x, y *mergedDir) ([]string, error) {
	xOwn, xCommon := d.split(x, 0)
	yOwn, yCommon := d.split(y, 1)
	if slices.Equal(xCommon, yCommon) {
		return names(append(xOwn, yOwn...))
	}
	var parts []part
	if x != nil {
		parts = append(parts, x.parts...)
	}
	if y != nil {
		parts = append(parts, y.parts...)
	}
	return names(parts)
}

// split divides a directory's parts into those of layers that only this side
// has, and the common layers' numbers, counted from the first common one.
func (d *differ) split(m *mergedDir, side int) (own []part, common []int) {
	if m == nil {
		return nil, nil
	}
	for _, p := range m.parts {
		if p.layer < d.shared[side] {
			own = append(own, p)
		} else {
			common = append(common, p.layer-d.shared[side])
		}
	}
	return own, common
}

func (d *differ) name(x, y *mergedDir, name, path string) error {
	a, err := lookupIn(x, name)
	if err != nil {
		return err
	}
	b, err := lookupIn(y, name)
	if err != nil {
		return err
	}
	switch {
	case a == nil && b == nil:
		return nil
	case a == nil:
		err = d.visit(Change{Path: path, Kind: Added, NewSize: size(&b.st), NewMode: b.st.Mode})
	case b == nil:
		err = d.visit(Change{Path: path, Kind: Deleted, OldSize: size(&a.st), OldMode: a.st.Mode})
	default:
		err = d.both(path, a.part.dir, name, &a.st, b.part.dir, &b.st)
	}
	if err != nil {
		return err
	}
	var xd, yd *mergedDir
	if a != nil && isDir(&a.st) {
		if xd, err = a.open(name); err != nil {
			return err
		}
		defer xd.close()
	}
	if b != nil && isDir(&b.st) {
		if yd, err = b.open(name); err != nil {
			return err
		}
		defer yd.close()
	}
	if xd == nil && yd == nil {
		return nil
	}
	return d.dirs(xd, yd, path+"/")
}

func lookupIn(m *mergedDir, name string) (*mergedEntry, error) {
	if m == nil {
		return nil, nil
	}
	e, _, err := m.lookup(name)
	return e, err
}

// both reports how two entries of one path differ, if they do.
func (d *differ) both(path string, aDir *os.File, name string, a *unix.Stat_t, bDir *os.File, b *unix.Stat_t) error {
	diff, err := compare(aDir, name, a, bDir, name, b, false)
	if err != nil {
		return fmt.Errorf("overlay: diff: %q: %w", path, err)
	}
	c := Change{Path: path, OldSize: size(a), NewSize: size(b), OldMode: a.Mode, NewMode: b.Mode}
	switch {
	case diff == 0:
		return nil
	case diff&differentType != 0:
		c.Kind = TypeChanged
	case diff&differentContent != 0:
		c.Kind = Modified
	case diff&differentMode != 0:
		c.Kind = ModeChanged
	default:
		c.Kind = MetadataChanged
	}
	return d.visit(c)
}

// size is 0 for a directory, whose own size means nothing.
func size(st *unix.Stat_t) int64 {
	if isDir(st) {
		return 0
	}
	return st.Size
}
