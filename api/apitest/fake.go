// Package apitest holds an in-memory stand-in for what the API serves, for tests
// of the API, its client and the command line: it keeps records, and "runs" a few
// commands by itself. Nothing about real sandboxes can be learnt from it.
package apitest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"cairn/api"
	"cairn/sandbox"
	"cairn/sandbox/files"
)

// Service implements api.Service and api.Images. Err, if it is set, may fail any
// call by the method's name.
type Service struct {
	Err func(method string) error
	Dir string // root of every sandbox's and checkpoint's files

	mu          sync.Mutex
	sandboxes   []sandbox.Sandbox
	checkpoints []sandbox.Checkpoint
	images      []sandbox.Image
	procs       map[string]*process
	Signals     []string // "exec_... 9", in order
	Calls       map[string]int
}

type process struct {
	sandbox.Process
	out, errs bytes.Buffer
	done      chan struct{}
	more      chan struct{} // closed and replaced when out grows
}

// write adds to stdout. The caller holds the lock.
func (p *process) write(data []byte) {
	p.out.Write(data)
	close(p.more)
	p.more = make(chan struct{})
}

// New returns a Service with the image "debian".
func New(t testing.TB) *Service {
	return &Service{
		Dir: t.TempDir(), procs: map[string]*process{}, Calls: map[string]int{},
		images: []sandbox.Image{{ID: "img_" + ulid.Make().String(), Name: "debian", Digest: "sha256:00", CreatedAt: time.Now()}},
	}
}

func (s *Service) begin(method string) error {
	s.mu.Lock()
	s.Calls[method]++
	s.mu.Unlock()
	if s.Err != nil {
		return s.Err(method)
	}
	return nil
}

func missing(what, id string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "there is no %s %q", what, id)
}

func (s *Service) find(id string) (*sandbox.Sandbox, error) {
	for i := range s.sandboxes {
		if sb := &s.sandboxes[i]; sb.ID == id || sb.Name == id {
			return sb, nil
		}
	}
	return nil, missing("sandbox", id)
}

func (s *Service) change(method, id string, fn func(*sandbox.Sandbox)) (sandbox.Sandbox, error) {
	if err := s.begin(method); err != nil {
		return sandbox.Sandbox{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sb, err := s.find(id)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	fn(sb)
	return *sb, nil
}

func (s *Service) Create(_ context.Context, r sandbox.CreateRequest) (sandbox.Sandbox, error) {
	if err := s.begin("Create"); err != nil {
		return sandbox.Sandbox{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.find(r.Name); err == nil {
		return sandbox.Sandbox{}, sandbox.Errorf(sandbox.CodeConflict, "the name %q is taken", r.Name)
	}
	if r.Image != "debian" {
		return sandbox.Sandbox{}, missing("image", r.Image)
	}
	if r.Config.Network == "" {
		r.Config.Network = sandbox.NetworkNone
	}
	r.Config.Hooks = withDefaults(r.Config.Hooks)
	sb := sandbox.Sandbox{
		ID: "sbx_" + ulid.Make().String(), Name: r.Name, State: sandbox.StateRunning, ImageID: s.images[0].ID, ImageName: r.Image,
		Config: r.Config, Labels: r.Labels, Generation: 1, CreatedAt: time.Now(), UpdatedAt: time.Now(),
	}
	if sb.Name == "" {
		sb.Name = sb.ID
	}
	s.sandboxes = append(s.sandboxes, sb)
	return sb, nil
}

func (s *Service) Sandbox(_ context.Context, id string) (sandbox.Sandbox, error) {
	return s.change("Sandbox", id, func(*sandbox.Sandbox) {})
}

func (s *Service) Sandboxes(_ context.Context, f sandbox.SandboxFilter, p sandbox.Page) (sandbox.List[sandbox.Sandbox], error) {
	var l sandbox.List[sandbox.Sandbox]
	if err := s.begin("Sandboxes"); err != nil {
		return l, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	from, _ := strconv.Atoi(p.Cursor)
	for i := from; i < len(s.sandboxes); i++ {
		if len(l.Items) == p.Limit {
			l.NextCursor = strconv.Itoa(i)
			break
		}
		if f.State == "" || f.State == s.sandboxes[i].State {
			l.Items = append(l.Items, s.sandboxes[i])
		}
	}
	return l, nil
}

func (s *Service) UpdateSandbox(_ context.Context, id string, u sandbox.SandboxUpdate) (sandbox.Sandbox, error) {
	return s.change("UpdateSandbox", id, func(sb *sandbox.Sandbox) {
		if u.Name != nil {
			sb.Name = *u.Name
		}
		if u.Labels != nil {
			sb.Labels = u.Labels
		}
		if u.Hooks != nil {
			sb.Config.Hooks = withDefaults(u.Hooks)
		}
	})
}

func (s *Service) Delete(_ context.Context, id string) error {
	_, err := s.change("Delete", id, func(sb *sandbox.Sandbox) { sb.Name, sb.ID = "", "" })
	return err
}

func (s *Service) Pause(_ context.Context, id string) (sandbox.Sandbox, error) {
	return s.change("Pause", id, func(sb *sandbox.Sandbox) { sb.State = sandbox.StatePaused })
}

func (s *Service) Resume(_ context.Context, id string) (sandbox.Sandbox, error) {
	return s.change("Resume", id, func(sb *sandbox.Sandbox) { sb.State = sandbox.StateRunning })
}

func (s *Service) Usage(context.Context, string) (sandbox.Usage, error) {
	return sandbox.Usage{CPUNanos: 1_500_000, MemoryBytes: 4096}, s.begin("Usage")
}

// Exec knows echo, err (to stderr), raw (bytes that are not UTF-8), exit, cat,
// block (until a signal), size (of its terminal, now and whenever it changes,
// until a signal) and true. At a terminal cat runs until its input is closed.
func (s *Service) Exec(_ context.Context, id string, r sandbox.ExecRequest) (sandbox.Process, error) {
	sb, err := s.change("Exec", id, func(*sandbox.Sandbox) {})
	if err != nil {
		return sandbox.Process{}, err
	}
	p := &process{done: make(chan struct{}), more: make(chan struct{}), Process: sandbox.Process{
		ID: "exec_" + ulid.Make().String(), SandboxID: sb.ID, Command: r.Command, Background: r.Background, PID: 7, TTY: r.TTY != nil,
		State: sandbox.ProcessRunning, StartedAt: time.Now(),
	}}
	code := 0
	switch r.Command[0] {
	case "true":
	case "echo":
		fmt.Fprintln(&p.out, strings.Join(r.Command[1:], " "))
	case "err":
		fmt.Fprintln(&p.errs, strings.Join(r.Command[1:], " "))
	case "raw":
		p.out.Write([]byte{0xff, 0, 'x'})
	case "exit":
		code, _ = strconv.Atoi(r.Command[1])
	case "cat":
		if r.Stdin != nil {
			if _, err := io.Copy(&p.out, r.Stdin); err != nil {
				return sandbox.Process{}, err
			}
		}
	case "block":
	case "size":
		if r.TTY == nil {
			return sandbox.Process{}, sandbox.Errorf(sandbox.CodeNotExecutable, "size needs a terminal")
		}
		fmt.Fprintf(&p.out, "size %d %d\r\n", r.TTY.Rows, r.TTY.Cols)
	default:
		return sandbox.Process{}, sandbox.Errorf(sandbox.CodeCommandNotFound, "there is no %q in the sandbox", r.Command[0])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.procs[p.ID] = p
	lasting := r.OpenStdin || r.Command[0] == "block" || r.Command[0] == "size" || r.Command[0] == "cat" && r.TTY != nil
	if !lasting {
		p.end(code, "")
	}
	return p.Process, nil
}

func (p *process) end(code int, signal string) {
	select {
	case <-p.done:
		return
	default:
	}
	p.State, p.ExitCode, p.Signal, p.ExitedAt = sandbox.ProcessExited, code, signal, time.Now()
	close(p.done)
}

func (s *Service) proc(id string) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.procs[id]; p != nil {
		return p, nil
	}
	return nil, missing("process", id)
}

func (s *Service) Run(ctx context.Context, id string, r sandbox.ExecRequest, most int) (sandbox.ExecResult, error) {
	if err := s.begin("Run"); err != nil {
		return sandbox.ExecResult{}, err
	}
	p, err := s.Exec(ctx, id, r)
	if err != nil {
		return sandbox.ExecResult{}, err
	}
	if p, err = s.Wait(ctx, id, p.ID); err != nil {
		return sandbox.ExecResult{}, err
	}
	live, err := s.proc(p.ID)
	if err != nil {
		return sandbox.ExecResult{}, err
	}
	out := live.out.Bytes()
	return sandbox.ExecResult{Process: p, Stdout: out[:min(len(out), most)], Stderr: live.errs.Bytes(), Duration: time.Millisecond}, nil
}

func (s *Service) Wait(ctx context.Context, _, id string) (sandbox.Process, error) {
	p, err := s.proc(id)
	if err != nil {
		return sandbox.Process{}, err
	}
	select {
	case <-p.done:
		return s.Process(ctx, "", id)
	case <-ctx.Done():
		return sandbox.Process{}, ctx.Err()
	}
}

func (s *Service) Follow(ctx context.Context, _, id string, stream sandbox.Stream, offset int64, fn func([]byte) error) error {
	p, err := s.proc(id)
	if err != nil {
		return err
	}
	for {
		s.mu.Lock()
		more := p.more
		s.mu.Unlock()
		o, err := s.ProcessOutput(ctx, "", id, stream, offset, 1<<30)
		if err == nil && len(o.Data) > 0 {
			err = fn(o.Data)
		}
		if offset = o.Next; err != nil || o.EOF {
			return err
		}
		select {
		case <-more:
		case <-p.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Service) ProcessOutput(_ context.Context, _, id string, stream sandbox.Stream, offset int64, most int) (sandbox.Output, error) {
	p, err := s.proc(id)
	if err != nil {
		return sandbox.Output{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := p.out.Bytes()
	if stream == sandbox.Stderr {
		all = p.errs.Bytes()
	}
	offset = min(offset, int64(len(all)))
	data := bytes.Clone(all[offset:min(int64(len(all)), offset+int64(most))])
	next := offset + int64(len(data))
	return sandbox.Output{Data: data, Offset: offset, Next: next, EOF: p.State != sandbox.ProcessRunning && next == int64(len(all))}, nil
}

func (s *Service) Processes(context.Context, string) ([]sandbox.Process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var l []sandbox.Process
	for _, p := range s.procs {
		l = append(l, p.Process)
	}
	return l, nil
}

func (s *Service) Process(_ context.Context, _, id string) (sandbox.Process, error) {
	p, err := s.proc(id)
	if err != nil {
		return sandbox.Process{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.Process, nil
}

func (s *Service) Signal(_ context.Context, _, id string, n int) error {
	p, err := s.proc(id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Signals = append(s.Signals, id+" "+strconv.Itoa(n))
	p.end(128+n, "SIG"+strconv.Itoa(n))
	return nil
}

func (s *Service) WriteStdin(_ context.Context, _, id string, data []byte) error {
	p, err := s.proc(id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.write(data)
	return nil
}

func (s *Service) Resize(_ context.Context, _, id string, size sandbox.TTY) error {
	p, err := s.proc(id)
	if err != nil {
		return err
	}
	if !p.TTY {
		return sandbox.Invalid("exec_id", "it has no terminal")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.Command[0] == "size" {
		p.write(fmt.Appendf(nil, "size %d %d\r\n", size.Rows, size.Cols))
	}
	return nil
}

func (s *Service) OutputRange(_ context.Context, _, id string, stream sandbox.Stream) (start, end int64, err error) {
	p, err := s.proc(id)
	if err != nil {
		return 0, 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if stream == sandbox.Stderr {
		return 0, int64(p.errs.Len()), nil
	}
	return 0, int64(p.out.Len()), nil
}

func (s *Service) CloseStdin(_ context.Context, _, id string) error {
	p, err := s.proc(id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.end(0, "")
	return nil
}

func (s *Service) root(readOnly bool) (*files.Root, func(), error) {
	dir, err := os.Open(s.Dir)
	if err != nil {
		return nil, nil, err
	}
	return files.New(dir, files.Options{ReadOnly: readOnly}), func() { dir.Close() }, nil
}

func (s *Service) Files(_ context.Context, id string, _ bool) (*files.Root, func(), error) {
	if _, err := s.change("Files", id, func(*sandbox.Sandbox) {}); err != nil {
		return nil, nil, err
	}
	return s.root(false)
}

func (s *Service) CheckpointFiles(ctx context.Context, id string) (*files.Root, func(), error) {
	if _, err := s.GetCheckpoint(ctx, id); err != nil {
		return nil, nil, err
	}
	return s.root(true)
}

// Pull, Import and the rest serve images.
func (s *Service) Pull(_ context.Context, r api.PullRequest, progress func(api.Progress)) (sandbox.Image, error) {
	if err := s.begin("Pull"); err != nil {
		return sandbox.Image{}, err
	}
	if progress != nil {
		progress(api.Progress{Status: "downloading", DoneBytes: 1, TotalBytes: 2})
	}
	return s.add(r.Ref), nil
}

func (s *Service) add(name string) sandbox.Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := sandbox.Image{ID: "img_" + ulid.Make().String(), Name: name, CreatedAt: time.Now()}
	s.images = append(s.images, i)
	return i
}

func (s *Service) Import(_ context.Context, r io.Reader, name string) (sandbox.Image, error) {
	n, err := io.Copy(io.Discard, r)
	if err != nil {
		return sandbox.Image{}, err
	}
	if n == 0 {
		return sandbox.Image{}, sandbox.Invalid("body", "an empty archive")
	}
	return s.add(name), nil
}

func (s *Service) Image(_ context.Context, id string) (sandbox.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.images {
		if i.ID == id || i.Name == id {
			return i, nil
		}
	}
	return sandbox.Image{}, missing("image", id)
}

func (s *Service) Images(context.Context, sandbox.Page) (sandbox.List[sandbox.Image], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sandbox.List[sandbox.Image]{Items: append([]sandbox.Image{}, s.images...)}, nil
}

func (s *Service) DeleteImage(ctx context.Context, id string) error {
	_, err := s.Image(ctx, id)
	return err
}

// Subscribe gives two events, then waits.
func (s *Service) Subscribe(ctx context.Context, after int64, fn func(sandbox.Event) error) error {
	for seq := int64(1); seq <= 2; seq++ {
		if seq > after {
			if err := fn(sandbox.Event{Seq: seq, Time: time.Now(), Type: "sandbox.created", Sandbox: "sbx_x", Subject: "sbx_x"}); err != nil {
				return err
			}
		}
	}
	if err := s.begin("Subscribe"); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// Signalled says whether a process was sent a signal, by number.
func (s *Service) Signalled(n string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sig := range s.Signals {
		if strings.HasSuffix(sig, " "+n) {
			return true
		}
	}
	return false
}

// withDefaults fills in what a hook leaves out.
func withDefaults(hooks []sandbox.Hook) []sandbox.Hook {
	for i := range hooks {
		if hooks[i].Timeout == 0 {
			hooks[i].Timeout = 10 * time.Second
		}
		if hooks[i].OnFailure == "" {
			hooks[i].OnFailure = sandbox.OnFailureFail
		}
	}
	return hooks
}
