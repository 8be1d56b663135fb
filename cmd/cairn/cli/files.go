package cli

import (
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"cairn/api/client"
	"cairn/api/types"
)

func (a *app) filesCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "files", Short: "Look at the files of a sandbox or a checkpoint",
		Example: "  cairn files ls alice:/etc\n  cairn files cat @alice:/etc/hostname\n  cairn files rm -r alice:/tmp/x",
	}
	var recursive bool
	rm := a.filesSub("rm", "Delete a file or directory of a sandbox", func(c *cobra.Command, at place) error {
		return client.Done(a.client.DeleteFile(c.Context(), at.owner, &types.DeleteFileParams{Path: at.path, Recursive: &recursive}))
	})
	rm.Flags().BoolVarP(&recursive, "recursive", "r", false, "with everything in it")
	mkdir := a.filesSub("mkdir", "Make a directory in a sandbox", func(c *cobra.Command, at place) error {
		p := types.WriteFileParams{Path: at.path, Type: new(types.WriteFileParamsTypeDirectory), Parents: new(true)}
		return a.put(c.Context(), at, byteType, p, noInput{})
	})
	c.AddCommand(a.filesSub("ls", "List a directory", a.listDir), a.filesSub("cat", "Write a file to standard output", a.catFile), mkdir, rm)
	return c
}

// noInput is an empty body.
type noInput struct{}

func (noInput) Read([]byte) (int, error) { return 0, io.EOF }

func (a *app) filesSub(verb, short string, do func(c *cobra.Command, at place) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " SANDBOX:PATH", Short: short, Example: "  cairn files " + verb + " alice:/root", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			at := parsePlace(args[0])
			if at.owner == "" {
				return usagef("%q: want SANDBOX:/path", args[0])
			}
			return do(c, at)
		},
	}
}

func (a *app) listDir(c *cobra.Command, at place) error {
	all, err := client.All(func(cursor *string) ([]types.FileInfo, string, error) {
		p := &types.ReadFileParams{Path: at.path, Cursor: cursor, Limit: new(1000)}
		ans, err := client.Get[types.FileAnswer](a.read(c.Context(), at, p, "application/json"))
		if err != nil || ans.Items == nil {
			return nil, "", err
		}
		next := ""
		if ans.NextCursor != nil {
			next = *ans.NextCursor
		}
		return *ans.Items, next, nil
	})
	if err != nil {
		return err
	}
	return a.show(types.FileAnswer{Items: &all}, func() error {
		var rows [][]string
		for _, f := range all {
			name := printable(f.Name)
			if f.Target != nil {
				name += " -> " + printable(*f.Target)
			}
			rows = append(rows, []string{f.Mode, strconv.Itoa(f.Uid), strconv.Itoa(f.Gid), size(f.SizeBytes), string(f.Type), name})
		}
		return a.table("MODE\tUID\tGID\tSIZE\tTYPE\tNAME", rows)
	})
}

func (a *app) catFile(c *cobra.Command, at place) error {
	body, _, err := client.Body(a.read(c.Context(), at, &types.ReadFileParams{Path: at.path}, byteType))
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(a.Out, body)
	return err
}
