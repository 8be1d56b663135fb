package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"cairn/api/client"
	"cairn/api/types"
)

func (a *app) imagesCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "images", Short: "Root file systems that sandboxes start from",
		Example: "  cairn images ls\n  cairn images pull docker.io/library/debian:12\n  cairn images import rootfs.tar --name debian\n  cairn images rm debian",
	}
	c.AddCommand(a.imagesList(), a.imagesPull(), a.imagesImport(), a.imagesRemove())
	return c
}

func (a *app) imagesList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List images", Example: "  cairn images ls", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := client.All(func(cursor *string) ([]types.Image, string, error) {
				l, err := client.Get[types.ImageList](a.client.ListImages(c.Context(), &types.ListImagesParams{Cursor: cursor, Limit: new(1000)}))
				return l.Items, l.NextCursor, err
			})
			if err != nil {
				return err
			}
			return a.show(types.ImageList{Items: append([]types.Image{}, all...)}, func() error {
				var rows [][]string
				for _, i := range all {
					rows = append(rows, []string{printable(i.Name), i.Id, size(i.SizeBytes), fmt.Sprint(len(i.Layers)), ago(i.CreatedAt)})
				}
				return a.table("NAME\tID\tSIZE\tLAYERS\tCREATED", rows)
			})
		},
	}
}

func (a *app) imagesPull() *cobra.Command {
	var name, user string
	var plain bool
	c := &cobra.Command{
		Use: "pull REFERENCE", Short: "Pull an image from a registry",
		Long:    "Pull an image. With --user the password is read from CAIRN_REGISTRY_PASSWORD.",
		Example: "  cairn images pull docker.io/library/debian:12 --name debian", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			r := types.PullImage{Ref: args[0], Name: set(name), PlainHttp: set(plain)}
			if user != "" {
				r.Credentials = &struct {
					Password string `json:"password"`
					Username string `json:"username"`
				}{a.getenv("CAIRN_REGISTRY_PASSWORD"), user}
			}
			i, err := a.pull(c.Context(), r)
			if err != nil {
				return err
			}
			return a.show(i, func() error { return a.line("%s %s", printable(i.Name), i.Id) })
		},
	}
	c.Flags().StringVar(&name, "name", "", "name of the image; the reference unless given")
	c.Flags().StringVar(&user, "user", "", "user at the registry")
	c.Flags().BoolVar(&plain, "plain-http", false, "the registry speaks plain HTTP")
	return c
}

func (a *app) pull(ctx context.Context, r types.PullImage) (types.Image, error) {
	var i types.Image
	e, err := client.OpenStream(a.client.AddImage(ctx, nil, r, client.Accept(client.EventStream)))
	if err != nil {
		return i, err
	}
	defer e.Close()
	defer a.progress("")
	for {
		ev, err := e.Next()
		if errors.Is(err, io.EOF) {
			return i, fmt.Errorf("the pull was cut off: %w", io.ErrUnexpectedEOF)
		}
		if err != nil {
			return i, err
		}
		switch ev.Type {
		case "progress":
			var p types.PullProgress
			if err := json.Unmarshal(ev.Data, &p); err != nil {
				return i, fmt.Errorf("read progress: %w", err)
			}
			a.progress("%s %s of %s", printable(p.Status), size(p.DoneBytes), size(p.TotalBytes))
		case "image":
			return i, json.Unmarshal(ev.Data, &i)
		}
	}
}

func (a *app) imagesImport() *cobra.Command {
	var name string
	c := &cobra.Command{
		Use: "import FILE", Short: "Import a docker or OCI archive, or a root file system",
		Long:    `Import an archive from a file or, with "-", from standard input. A root file system needs --name.`,
		Example: "  cairn images import rootfs.tar.gz --name debian", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			in := a.In
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			}
			a.progress("importing %s ...", args[0])
			i, err := client.Get[types.Image](a.client.AddImageWithBody(c.Context(), &types.AddImageParams{Name: set(name)}, tarType, io.NopCloser(in)))
			a.progress("")
			if err != nil {
				return err
			}
			return a.show(i, func() error { return a.line("%s %s", printable(i.Name), i.Id) })
		},
	}
	c.Flags().StringVar(&name, "name", "", "name of the image")
	return c
}

func (a *app) imagesRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm IMAGE...", Short: "Delete images that nothing is made from", Example: "  cairn images rm debian",
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.completeImages,
		RunE: func(c *cobra.Command, args []string) error {
			var all error
			for _, name := range args {
				all = errors.Join(all, client.Done(a.client.DeleteImage(c.Context(), name)))
			}
			return all
		},
	}
}
