package cli

import (
	"context"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"cairn/cmd/cairn/demo"
)

func (a *app) demoCommand() *cobra.Command {
	var o demo.Options
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show on a real project what Cairn does, beside containerd's own way",
		Long: `Show on a real project what Cairn does, beside containerd's own way.

A daemon of its own is started in a temporary directory, with the programs beside
this one. An agent clones a project in a sandbox, ruins it, and gets it back; then
three forks try to fix a bug. Everything is removed at the end. It needs root. The
exit code is 0 only when all that is claimed was proved.`,
		Example: "  make demo\n  cairn demo --image-tar build/demo.tar",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.demo(c.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.ImageTar, "image-tar", "build/demo.tar", "root file system with Python, git and SQLite")
	f.StringVar(&o.RepoTar, "repo-tar", "", "the project (default demo-repo.tar beside the image)")
	f.StringVar(&o.Root, "root", "", "directory to use, absent or empty (default a temporary one in /var/tmp)")
	f.BoolVar(&o.Keep, "keep", false, "leave the daemon and its sandboxes running")
	return c
}

func (a *app) demo(ctx context.Context, o demo.Options) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	o.Bin, o.Out, o.JSON = filepath.Dir(self), a.Out, a.json
	if o.RepoTar == "" {
		o.RepoTar = filepath.Join(filepath.Dir(o.ImageTar), "demo-repo.tar")
	}
	return demo.Run(ctx, o)
}
