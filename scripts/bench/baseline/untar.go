package baseline

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
)

// Untar unpacks a root file system into dir with the host's tar.
func Untar(ctx context.Context, tar, dir string) error {
	out, err := exec.CommandContext(ctx, "tar", "--extract", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--file", tar, "--directory", dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("unpack %s: %w: %s", tar, err, bytes.TrimSpace(out))
	}
	return nil
}
