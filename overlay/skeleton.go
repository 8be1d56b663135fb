package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
)

// skeletonDirs are the mount points that every container has. /tmp is there
// so that an image without one is usable.
func skeletonDirs() map[string]os.FileMode {
	return map[string]os.FileMode{
		".cairn":    0o755,
		"dev":       0o755,
		"etc":       0o755,
		"proc":      0o555,
		"root":      0o700,
		"run":       0o755,
		"run/cairn": 0o755,
		"sys":       0o555,
		"tmp":       0o755,
	}
}

// makeSkeleton makes the skeleton root or completes it. The files are owned
// by root and hold nothing of any sandbox.
func makeSkeleton(dir string) error {
	dirs := skeletonDirs()
	dirs[""] = 0o755
	names := make([]string, 0, len(dirs))
	for name := range dirs {
		names = append(names, name)
	}
	// A parent's name is a prefix of its child's and so sorts before it.
	sort.Strings(names)
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("overlay: make skeleton: %w", err)
		}
		if err := os.Chmod(path, dirs[name]); err != nil {
			return fmt.Errorf("overlay: make skeleton: %w", err)
		}
	}
	return nil
}
