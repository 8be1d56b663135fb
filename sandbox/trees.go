package sandbox

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"cairn/sandbox/files"
)

// Files gives the files of a sandbox as a caller may use them: of a running or
// paused one through its root, of a stopped one through its stack. With write it
// holds off checkpoints and restores until release is called.
func (s *Service) Files(ctx context.Context, idOrName string, write bool) (*files.Root, func(), error) {
	id, err := s.resolve(ctx, idOrName)
	if err != nil {
		return nil, nil, err
	}
	unlock, err := s.share(ctx, id, "files")
	if err != nil {
		return nil, nil, err
	}
	sb, err := s.Sandbox(ctx, id)
	if err == nil {
		var root *files.Root
		var done func()
		if root, done, err = s.tree(ctx, sb, write); err == nil {
			return root, func() { done(); unlock() }, nil
		}
	}
	unlock()
	return nil, nil, err
}

// tree opens a sandbox's files. The caller holds its lock.
func (s *Service) tree(ctx context.Context, sb Sandbox, write bool) (*files.Root, func(), error) {
	if c, err := s.container(sb); err == nil {
		dir, err := os.Open(fmt.Sprintf("/proc/%d/root", c.PID()))
		if err != nil {
			return nil, nil, Wrap(err, CodeConflict, "sandbox %s has just ended", sb.Name)
		}
		root := files.New(dir, files.Options{UIDBase: c.IDBase(), GIDBase: c.IDBase(), ReadOnly: !write})
		return root, func() { closeQuietly(dir) }, nil
	}
	if sb.State != StateStopped {
		return nil, nil, Errorf(CodeConflict, "sandbox %s is %s", sb.Name, sb.State)
	}
	t, err := s.o.Layers.MountStack(ctx, Stack{Upper: sb.Upper, Layers: sb.Base})
	if err != nil {
		return nil, nil, err
	}
	return files.New(t.Root(), files.Options{ReadOnly: !write}), func() { closeQuietly(t) }, nil
}

// closeQuietly closes what was only read; there is nobody to tell.
func closeQuietly(c io.Closer) { _ = c.Close() }

// CheckpointFiles gives the files of a checkpoint, read-only, until release.
func (s *Service) CheckpointFiles(ctx context.Context, id string) (*files.Root, func(), error) {
	cp, unpin, err := s.hold(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	t, err := s.o.Layers.View(ctx, cp.Stack)
	if err != nil {
		unpin()
		return nil, nil, err
	}
	return files.New(t.Root(), files.Options{ReadOnly: true}), func() { closeQuietly(t); unpin() }, nil
}

func checkRestorePaths(paths []string) error {
	const most = 1000
	if len(paths) > most {
		return Invalid("paths", "at most %d", most)
	}
	for _, p := range paths {
		if !path.IsAbs(p) || path.Clean(p) == "/" || len(p) > maxPathBytes || strings.ContainsRune(p, 0) {
			return Invalid("paths", "absolute paths other than / itself")
		}
	}
	return nil
}

// copyPath makes p in the one tree what it is in the other: absent, a file, a
// symlink, or a directory with everything below it.
func (s *Service) copyPath(ctx context.Context, from, to *files.Root, p string) error {
	p = path.Clean(p)
	info, err := from.Stat(ctx, p, false)
	missing := errors.Is(err, files.ErrNotFound)
	if err != nil && !missing {
		return err
	}
	if err := to.Remove(ctx, p, true); err != nil && !errors.Is(err, files.ErrNotFound) {
		return err
	}
	if err := s.reach("restore_paths.removed"); err != nil || missing {
		return err
	}
	dir := path.Dir(p)
	if info.Type == files.TypeDir {
		dir = p
	}
	if _, err := to.Mkdir(ctx, dir, files.MkdirOptions{Parents: true}); err != nil && !errors.Is(err, files.ErrExists) {
		return err
	}
	if info.Type == files.TypeSymlink {
		_, err := to.TarIn(ctx, dir, symlinkArchive(info), files.TarInOptions{})
		return err
	}
	r, w := io.Pipe()
	defer r.Close()
	go func() {
		_, err := from.TarOut(ctx, p, w)
		w.CloseWithError(err)
	}()
	_, err = to.TarIn(ctx, dir, r, files.TarInOptions{})
	return err
}

// symlinkArchive is a tar with one symlink.
func symlinkArchive(info files.Info) io.Reader {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{
		Typeflag: tar.TypeSymlink, Name: info.Name, Linkname: info.Target, Mode: 0o777,
		Uid: int(info.UID), Gid: int(info.GID), ModTime: info.ModTime, Format: tar.FormatPAX,
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return errorReader{err}
	}
	return &b
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }
