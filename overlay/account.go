package overlay

import (
	"fmt"
	"io/fs"
	"path/filepath"
)

// Account puts every directory that is below dir now, dir included, into a
// project: what is made in them later counts towards it. dir must be on the
// pool's file system, and nobody else may change it meanwhile. Where the pool
// has no project quota it does nothing.
func (p *Pool) Account(dir string, project uint32) error {
	if project == 0 || !p.features.ProjectQuota {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if err := setProject(path, project); err != nil {
			return fmt.Errorf("overlay: account %s: %w", path, err)
		}
		return nil
	})
}
