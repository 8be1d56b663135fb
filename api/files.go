package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"

	"cairn/api/types"
	"cairn/sandbox"
	"cairn/sandbox/files"
)

const (
	tarType = "application/x-tar"
	// inMemory is up to which size an upload is not spooled to disk, bytes.
	inMemory = 256 << 10
)

// reading is one request for a file, of a sandbox or of a checkpoint.
type reading struct {
	path   string
	stat   bool
	cursor string
	limit  int
}

func (s *server) ReadFile(ctx context.Context, r ReadFileRequestObject) (ReadFileResponseObject, error) {
	q := r.Params
	return respond(func(w http.ResponseWriter) error {
		root, release, err := s.Service.Files(ctx, r.SandboxId, false)
		if err != nil {
			return err
		}
		defer release()
		return serveFile(w, requestOf(ctx), root, reading{q.Path, value(q.Stat), value(q.Cursor), orDefault(q.Limit, 100)})
	}), nil
}

func (s *server) ReadCheckpointFile(ctx context.Context, r ReadCheckpointFileRequestObject) (ReadCheckpointFileResponseObject, error) {
	q := r.Params
	return respond(func(w http.ResponseWriter) error {
		root, release, err := s.Service.CheckpointFiles(ctx, r.CheckpointId)
		if err != nil {
			return err
		}
		defer release()
		return serveFile(w, requestOf(ctx), root, reading{q.Path, value(q.Stat), value(q.Cursor), orDefault(q.Limit, 100)})
	}), nil
}

func serveFile(w http.ResponseWriter, r *http.Request, root *files.Root, q reading) error {
	ctx := r.Context()
	info, err := root.Stat(ctx, q.path, !q.stat)
	if err != nil {
		return err
	}
	if q.stat {
		fi := fileInfoOf(q.path, info)
		return writeJSON(w, types.FileAnswer{File: &fi})
	}
	offers := []string{octetStream, tarType}
	if info.Type == files.TypeDir {
		offers = []string{"application/json", tarType}
	}
	switch form := negotiate(r.Header.Get("Accept"), offers...); {
	case form == "":
		return &sandbox.Error{Code: codeNotAcceptable, Message: fmt.Sprintf("a %s comes as one of %v", fileType(info.Type), offers)}
	case form == tarType:
		w.Header().Set("Content-Type", tarType)
		_, err := root.TarOut(ctx, q.path, w)
		return err
	case info.Type == files.TypeDir:
		return serveDir(w, r, root, q)
	}
	f, err := root.Open(ctx, q.path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := w.Header()
	h.Set("Content-Type", octetStream)
	h.Set("Content-Disposition", "attachment")
	h.Set("ETag", fmt.Sprintf(`"%x-%x-%x"`, info.Inode, info.ModTime.UnixNano(), f.Size()))
	http.ServeContent(&rangeProblem{ResponseWriter: w, request: r}, r, "", info.ModTime, f)
	return nil
}

func serveDir(w http.ResponseWriter, r *http.Request, root *files.Root, q reading) error {
	p, err := root.List(r.Context(), q.path, q.cursor, q.limit)
	if err != nil {
		return err
	}
	items := each(p.Items, func(i files.Info) types.FileInfo { return fileInfoOf(path.Join(q.path, i.Name), i) })
	return writeJSON(w, types.FileAnswer{Items: &items, NextCursor: &p.Next})
}

func writeJSON(w http.ResponseWriter, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, err = w.Write(body)
	return err
}

// rangeProblem makes the plain text that net/http answers to a bad range a problem.
type rangeProblem struct {
	http.ResponseWriter
	request *http.Request
	done    bool
}

func (p *rangeProblem) WriteHeader(status int) {
	if status == http.StatusRequestedRangeNotSatisfiable && !p.done {
		p.done = true
		p.Header().Del("ETag")
		p.Header().Del("Content-Disposition")
		writeProblem(p.ResponseWriter, problemOf(p.request.Context(), &sandbox.Error{Code: codeRange, Message: "the range lies outside the file or is malformed"}))
		return
	}
	p.ResponseWriter.WriteHeader(status)
}

func (p *rangeProblem) Write(b []byte) (int, error) {
	if p.done {
		return len(b), nil
	}
	return p.ResponseWriter.Write(b)
}

// ReadFrom keeps the fast path of copying a file to a socket.
func (p *rangeProblem) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(p.ResponseWriter, r)
}

func (s *server) WriteFile(ctx context.Context, r WriteFileRequestObject) (WriteFileResponseObject, error) {
	q := r.Params
	uid, gid, mode := id(q.Uid), id(q.Gid), (*uint32)(nil)
	if q.Mode != nil {
		m, err := strconv.ParseUint(*q.Mode, 8, 12)
		if err != nil {
			return nil, sandbox.Invalid("mode", "octal digits")
		}
		bits := uint32(m)
		mode = &bits
	}
	isTar := contentType(requestOf(ctx)) == tarType
	isDir := q.Type != nil && *q.Type == types.WriteFileParamsTypeDirectory
	// What arrives slowly is collected before the sandbox is locked.
	body, err := s.collect(ctx, r.Body)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	if isDir && body.size > 0 {
		return nil, sandbox.Invalid("body", "it is empty when a directory is made")
	}
	root, release, err := s.Service.Files(ctx, r.SandboxId, true)
	if err != nil {
		return nil, err
	}
	defer release()
	var info files.Info
	switch {
	case isDir:
		info, err = root.Mkdir(ctx, q.Path, files.MkdirOptions{Mode: mode, UID: uid, GID: gid, Parents: value(q.Parents)})
	case isTar:
		if _, err = root.TarIn(ctx, q.Path, body, files.TarInOptions{UID: uid, GID: gid, Parents: value(q.Parents)}); err == nil {
			info, err = root.Stat(ctx, q.Path, true)
		}
	default:
		info, err = root.Write(ctx, q.Path, body, files.WriteOptions{Mode: mode, UID: uid, GID: gid, Parents: value(q.Parents)})
	}
	if err != nil {
		return nil, err
	}
	return WriteFile200JSONResponse(fileInfoOf(q.Path, info)), nil
}

func id(n *int) *uint32 {
	if n == nil {
		return nil
	}
	u := uint32(*n) // 0 to 65535 by the contract
	return &u
}

// collected is a body that has arrived.
type collected struct {
	io.Reader
	io.Closer
	size int64
}

// collect takes in a whole body, in memory when it is small.
func (s *server) collect(ctx context.Context, body io.Reader) (*collected, error) {
	if body == nil {
		body = http.NoBody
	}
	small, err := io.ReadAll(io.LimitReader(body, inMemory))
	if err != nil {
		return nil, bodyError(err)
	}
	if len(small) < inMemory {
		return &collected{bytes.NewReader(small), io.NopCloser(nil), int64(len(small))}, nil
	}
	f, err := files.Spool(ctx, s.SpoolDir, io.MultiReader(bytes.NewReader(small), body), s.maxUpload)
	if err != nil {
		var big *http.MaxBytesError
		if errors.As(err, &big) {
			return nil, big
		}
		return nil, err
	}
	return &collected{f, f, inMemory}, nil
}

func (s *server) DeleteFile(ctx context.Context, r DeleteFileRequestObject) (DeleteFileResponseObject, error) {
	root, release, err := s.Service.Files(ctx, r.SandboxId, true)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := root.Remove(ctx, r.Params.Path, value(r.Params.Recursive)); err != nil {
		return nil, err
	}
	return DeleteFile204Response{}, nil
}

func fileType(t files.Type) types.FileInfoType {
	switch t {
	case files.TypeDir:
		return types.FileInfoTypeDirectory
	case files.TypeSymlink:
		return types.FileInfoTypeSymlink
	case files.TypeFIFO:
		return types.FileInfoTypeFifo
	case files.TypeSocket:
		return types.FileInfoTypeSocket
	case files.TypeChar, files.TypeBlock:
		return types.FileInfoTypeDevice
	case files.TypeFile:
	}
	return types.FileInfoTypeFile
}

func fileInfoOf(at string, i files.Info) types.FileInfo {
	out := types.FileInfo{
		Name: i.Name, Path: path.Clean(at), Type: fileType(i.Type), SizeBytes: i.Size, Mode: octal(i.Mode),
		Uid: int(i.UID), Gid: int(i.GID), Target: optional(i.Target), ModifiedAt: i.ModTime,
	}
	if i.NameBytes != nil {
		out.NameBase64 = &i.NameBytes
	}
	return out
}
