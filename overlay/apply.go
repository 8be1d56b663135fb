package overlay

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/pkg/archive"
)

// Limits bounds what an image layer may hold. 0 is no limit.
type Limits struct {
	Bytes   int64 // of content
	Entries int64
	// Below are the layers below, top first: a directory that the tar has
	// something in but not itself gets its mode and owner from there.
	Below []string
}

// Applied is what an image layer turned out to hold.
type Applied struct {
	DiffID  string // "sha256:" and the hex digest of the tar as it was read
	Bytes   int64  // of content
	Files   int64  // entries, skipped ones included
	Skipped int64  // devices, which sandboxes can't use
}

// maxPath bounds names in a tar, in bytes.
const maxPath = 4095

// ApplyTar makes layer id out of an image layer, an uncompressed tar with
// whiteouts as OCI has them. Nothing is written outside the layer, whatever
// the tar says; its symbolic links are followed inside the layer only.
//
// Errors: ArchiveError for a name with "..", a hard link out of the layer or
// a broken tar, LimitError, ErrExists. No layer is made on an error.
func (p *Pool) ApplyTar(ctx context.Context, id string, r io.Reader, lim Limits) (Applied, error) {
	if err := p.check(lim.Below...); err != nil {
		return Applied{}, err
	}
	parents := make([]string, 0, len(lim.Below))
	for _, id := range lim.Below {
		parents = append(parents, p.LayerPath(id))
	}
	a := &applier{lim: lim}
	sum := sha256.New()
	err := p.stage(id, func(dir string) error {
		in := io.TeeReader(r, sum)
		_, err := archive.Apply(ctx, filepath.Join(dir, filesDir), in,
			archive.WithFilter(a.filter),
			archive.WithConvertWhiteout(archive.OverlayConvertWhiteout),
			archive.WithParents(parents))
		if err != nil {
			return a.explain(ctx, err)
		}
		// The digest is over everything, padding after the end included;
		// how much of that there may be is bounded too.
		rest := in
		if lim.Bytes > 0 {
			rest = io.LimitReader(in, lim.Bytes+1)
		}
		n, err := io.Copy(io.Discard, rest)
		if err != nil {
			return fmt.Errorf("overlay: read image layer: %w", err)
		}
		if lim.Bytes > 0 && n > lim.Bytes {
			return &LimitError{What: "bytes", Max: lim.Bytes}
		}
		return nil
	})
	if err != nil {
		return Applied{}, err
	}
	a.done.DiffID = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	return a.done, nil
}

type applier struct {
	lim  Limits
	done Applied
	name string // of the entry at hand
}

// filter is asked before an entry is made. It refuses what no image layer
// needs and drops what could mean something to overlayfs.
func (a *applier) filter(h *tar.Header) (bool, error) {
	a.name = h.Name
	a.done.Files++
	if a.lim.Entries > 0 && a.done.Files > a.lim.Entries {
		return false, &LimitError{What: "entries", Max: a.lim.Entries}
	}
	if h.Size < 0 {
		return false, &ArchiveError{Entry: h.Name, What: "has a negative size"}
	}
	if a.lim.Bytes > 0 && h.Size > a.lim.Bytes-a.done.Bytes {
		return false, &LimitError{What: "bytes", Max: a.lim.Bytes}
	}
	a.done.Bytes += h.Size
	if err := checkName(h.Name); err != nil {
		return false, err
	}
	switch h.Typeflag {
	case tar.TypeChar, tar.TypeBlock:
		a.done.Skipped++
		return false, nil
	case tar.TypeLink:
		if err := checkName(h.Linkname); err != nil {
			return false, err
		}
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeFifo, tar.TypeXGlobalHeader:
	default:
		return false, &ArchiveError{Entry: h.Name, What: fmt.Sprintf("has unknown type %q", h.Typeflag)}
	}
	for key := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, "SCHILY.xattr.")
		if ok && !strings.HasPrefix(name, "user.") && name != "security.capability" {
			delete(h.PAXRecords, key)
		}
	}
	return true, nil
}

func checkName(name string) error {
	if len(name) > maxPath {
		return &ArchiveError{Entry: name[:64] + "...", What: "has too long a name"}
	}
	for e := range strings.SplitSeq(name, "/") {
		if e == ".." {
			return &ArchiveError{Entry: name, What: `has ".." in it`}
		}
		if strings.IndexByte(e, 0) >= 0 {
			return &ArchiveError{Entry: name, What: "has a zero byte in it"}
		}
	}
	return nil
}

// explain makes the caller's kind of error out of one of the archive's.
func (a *applier) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var lim *LimitError
	var arc *ArchiveError
	if errors.As(err, &lim) || errors.As(err, &arc) {
		return err
	}
	return &ArchiveError{Entry: a.name, What: err.Error(), Err: err}
}
