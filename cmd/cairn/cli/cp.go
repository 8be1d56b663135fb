package cli

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"cairn/api/client"
	"cairn/api/types"
)

const (
	tarType  = "application/x-tar"
	byteType = "application/octet-stream"
)

// place is one end of a copy: a local path, "-", or a path in a sandbox or checkpoint.
type place struct {
	owner string // sandbox name or id, checkpoint id or @sandbox; "" for local
	path  string
}

func parsePlace(s string) place {
	owner, p, ok := strings.Cut(s, ":")
	if !ok || owner == "" || strings.Contains(owner, "/") || s == "-" {
		return place{path: s}
	}
	return place{owner, p}
}

func (a *app) cpCommand() *cobra.Command {
	var untar bool
	c := &cobra.Command{
		Use:   "cp SOURCE DESTINATION",
		Short: "Copy files into and out of a sandbox, or out of a checkpoint",
		Long: `Copy files and directories. One of both ends is SANDBOX:/path (or, as a source,
CHECKPOINT:/path with a checkpoint's id or @SANDBOX); the other is a local path or
"-". From "-" a file's bytes are read, or with --tar an archive to unpack; to "-"
a file is written as it is and a directory as a tar archive.

When the destination is a directory that exists, the copy goes into it.`,
		Example: `  cairn cp ./project alice:/app
  cairn cp alice:/app/report.txt .
  cairn cp @alice:/etc - | tar t
  echo hello | cairn cp - alice:/root/greeting`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			from, to := parsePlace(args[0]), parsePlace(args[1])
			switch {
			case (from.owner == "") == (to.owner == ""):
				return usagef("one of both ends must be SANDBOX:/path")
			case to.owner != "":
				return a.copyIn(c.Context(), from.path, to, untar)
			}
			return a.copyOut(c.Context(), from, to.path)
		},
	}
	c.Flags().BoolVar(&untar, "tar", false, "what comes from - is a tar archive to unpack")
	return c
}

func (a *app) copyIn(ctx context.Context, local string, to place, untar bool) error {
	if strings.HasPrefix(to.owner, "@") || checkpointID.MatchString(to.owner) {
		return usagef("a checkpoint cannot be changed")
	}
	if local == "-" {
		kind := byteType
		if untar {
			kind = tarType
		}
		return a.put(ctx, to, kind, types.WriteFileParams{Path: to.path, Parents: new(true)}, a.In)
	}
	info, err := os.Stat(local)
	if err != nil {
		return err
	}
	at, err := a.stat(ctx, to)
	if err != nil && client.CodeOf(err) != types.NotFound {
		return err
	}
	if err == nil && at.Type == types.FileInfoTypeDirectory || strings.HasSuffix(to.path, "/") {
		abs, err := filepath.Abs(local)
		if err != nil {
			return err
		}
		to.path = path.Join(to.path, filepath.Base(abs))
	}
	if !info.IsDir() {
		f, err := os.Open(local)
		if err != nil {
			return err
		}
		defer f.Close()
		mode := permissions(info.Mode())
		return a.put(ctx, to, byteType, types.WriteFileParams{Path: to.path, Mode: &mode, Parents: new(true)}, f)
	}
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(packDir(ctx, local, w))
	}()
	err = a.put(ctx, to, tarType, types.WriteFileParams{Path: to.path, Parents: new(true)}, r)
	r.CloseWithError(errors.New("the daemon does not read on"))
	<-done
	return err
}

func (a *app) put(ctx context.Context, to place, kind string, p types.WriteFileParams, body io.Reader) error {
	info, err := client.Get[types.FileInfo](a.client.WriteFileWithBody(ctx, to.owner, &p, kind, io.NopCloser(body)))
	if err != nil || !a.json {
		return err
	}
	return a.show(info, nil)
}

// stat looks at a path in a sandbox or checkpoint, following links.
func (a *app) stat(ctx context.Context, at place) (types.FileInfo, error) {
	for range 40 {
		ans, err := client.Get[types.FileAnswer](a.read(ctx, at, &types.ReadFileParams{Path: at.path, Stat: new(true)}, "application/json"))
		if err != nil {
			return types.FileInfo{}, err
		}
		if ans.File == nil {
			return types.FileInfo{}, errors.New("the daemon's answer has no file")
		}
		if ans.File.Type != types.FileInfoTypeSymlink || ans.File.Target == nil {
			return *ans.File, nil
		}
		if target := *ans.File.Target; path.IsAbs(target) {
			at.path = target
		} else {
			at.path = path.Join(path.Dir(at.path), target)
		}
	}
	return types.FileInfo{}, errors.New(printable(at.path) + ": too many symbolic links")
}

// read asks for a file of a sandbox or a checkpoint.
func (a *app) read(ctx context.Context, at place, p *types.ReadFileParams, accept string) (*http.Response, error) {
	if !strings.HasPrefix(at.owner, "@") && !checkpointID.MatchString(at.owner) {
		return a.client.ReadFile(ctx, at.owner, p, client.Accept(accept))
	}
	id, err := a.checkpoint(ctx, at.owner)
	if err != nil {
		return nil, err
	}
	q := types.ReadCheckpointFileParams(*p)
	return a.client.ReadCheckpointFile(ctx, id, &q, client.Accept(accept))
}

func (a *app) copyOut(ctx context.Context, from place, local string) error {
	info, err := a.stat(ctx, from)
	if err != nil {
		return err
	}
	isDir := info.Type == types.FileInfoTypeDirectory
	accept := byteType
	if isDir {
		accept = tarType
	}
	body, _, err := client.Body(a.read(ctx, from, &types.ReadFileParams{Path: from.path}, accept))
	if err != nil {
		return err
	}
	defer body.Close()
	if local == "-" {
		_, err := io.Copy(a.Out, body)
		return err
	}
	if st, err := os.Stat(local); err == nil && st.IsDir() {
		base := path.Base(path.Clean("/" + from.path))
		if base == "/" {
			base = "."
		}
		local = filepath.Join(local, base)
	}
	if isDir {
		return unpackDir(ctx, body, local)
	}
	return writeLocal(body, local, mode(info.Mode))
}

// writeLocal puts a whole file in place, or nothing.
func writeLocal(r io.Reader, local string, perm os.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(local), ".cairn-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	if _, err = io.Copy(f, r); err != nil {
		return err
	}
	if err = f.Chmod(perm & 0o777); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), local); err != nil {
		return err
	}
	return f.Close()
}
