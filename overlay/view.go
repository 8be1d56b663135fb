package overlay

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// View is an overlay that is attached nowhere, with owners as they are
// inside: what the files API and browsing read.
type View struct {
	mnt  *os.File
	root *os.File
}

// View makes a read-only overlay of layers, top first. It sees the layers
// as they are: none of them may be written to meanwhile.
func (p *Pool) View(layers []string) (*View, error) {
	for _, id := range layers {
		if err := checkID(id); err != nil {
			return nil, err
		}
	}
	if len(layers) == 0 {
		tree, err := openTree(p.Skeleton())
		if err != nil {
			return nil, fmt.Errorf("overlay: view: %w", err)
		}
		err = unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
		if err != nil {
			tree.Close()
			return nil, fmt.Errorf("overlay: view: %w", err)
		}
		return newView(tree)
	}
	mnt, err := overlayOf(fdPath(p.root), Stack{Layers: layers})
	if err != nil {
		return nil, fmt.Errorf("overlay: view: %w", err)
	}
	return newView(mnt)
}

// MountStack makes an overlay of a stack that can be written to, for work on
// a container that does not run. Its upper must not be attached elsewhere.
func (p *Pool) MountStack(s Stack) (*View, error) {
	if err := p.checkStack(s); err != nil {
		return nil, err
	}
	mnt, err := overlayOf(fdPath(p.root), s)
	if err != nil {
		return nil, fmt.Errorf("overlay: mount %s: %w", s.Upper, err)
	}
	if err := p.inheritRoot(mnt, s, 0, 0); err != nil {
		mnt.Close()
		return nil, err
	}
	return newView(mnt)
}

func newView(mnt *os.File) (*View, error) {
	root, err := openDir(int(mnt.Fd()), ".")
	if err != nil {
		mnt.Close()
		return nil, fmt.Errorf("overlay: view: %w", err)
	}
	return &View{mnt: mnt, root: root}, nil
}

// Root is the overlay's root directory, open for reading until Close.
func (v *View) Root() *os.File { return v.root }

// Close takes the overlay away once nobody has a file of it open.
func (v *View) Close() error { return errors.Join(v.root.Close(), v.mnt.Close()) }
