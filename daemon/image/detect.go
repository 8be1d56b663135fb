package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"path"
	"regexp"
	"strings"
)

// kind is what a tar holds.
type kind int

const (
	kindRootFS kind = iota
	kindArchive
)

// archiveEntry matches the first component of what image archives hold.
var archiveEntry = regexp.MustCompile(`^(oci-layout|index\.json|manifest\.json|repositories|blobs|[0-9a-f]{64}|[0-9a-f]{64}\.json)$`)

// detect tells an image archive from a root file system by the first entry of
// the tar that head begins. An archive's names are a closed set, and a root
// file system has none of them at its top.
func detect(head []byte) (kind, error) {
	tr := tar.NewReader(bytes.NewReader(head))
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) && len(head) >= 1024 {
			return 0, refused(nil, "the tar is empty")
		}
		if err != nil {
			return 0, refused(err, "it is not a tar, neither of an image nor of a root file system")
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if name == "" {
			continue
		}
		first, _, _ := strings.Cut(name, "/")
		if archiveEntry.MatchString(first) {
			return kindArchive, nil
		}
		return kindRootFS, nil
	}
}
