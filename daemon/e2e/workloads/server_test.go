package workloads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"cairn/api/client"
	"cairn/api/types"
)

const imageName = "workloads"

// server is the daemon that all tests share.
type server struct {
	socket, log string
	cmd         *exec.Cmd
	ended       chan struct{} // closed when the process has
	client      *client.Client
}

// serve starts a daemon below the directory and returns when it is ready.
func serve(dir, bin string) (*server, error) {
	root, config := filepath.Join(dir, "r"), filepath.Join(dir, "c.toml")
	if err := os.Mkdir(root, 0o711); err != nil {
		return nil, err
	}
	text := fmt.Sprintf("[containerd]\nbinaries = %q\n[warm]\nnone = 4\n[log]\nlevel = \"debug\"\n", bin)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	d := &server{socket: filepath.Join(root, "run", "cairn.sock"), log: filepath.Join(dir, "log"), ended: make(chan struct{})}
	out, err := os.Create(d.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	d.cmd = exec.Command(filepath.Join(bin, "cairnd"), "serve", "--root", root, "--config", config)
	d.cmd.Stdout, d.cmd.Stderr = out, out
	if d.client, err = client.Dial(client.Options{Socket: d.socket}); err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_, _ = d.cmd.Process.Wait()
		close(d.ended)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for client.Done(d.client.GetReady(ctx)) != nil {
		select {
		case <-tick.C:
			continue
		case <-ctx.Done():
		case <-d.ended:
		}
		said, _ := os.ReadFile(d.log)
		return d, fmt.Errorf("the daemon does not get ready: %s", said)
	}
	return d, nil
}

func (d *server) importImage(agent, debian string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
	defer cancel()
	r, w := io.Pipe()
	go func() { w.CloseWithError(image(w, agent, debian)) }()
	defer r.Close()
	name := imageName
	_, err := client.Get[types.Image](d.client.AddImageWithBody(ctx, &types.AddImageParams{Name: &name}, "application/x-tar", r))
	return err
}

// end stops the daemon in order, once nothing is left in it.
func (d *server) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	list, err := client.Get[types.SandboxList](d.client.ListSandboxes(ctx, nil))
	for _, sb := range list.Items { // of tests that failed
		err = errors.Join(err, client.Done(d.client.DeleteSandbox(ctx, sb.Id)))
	}
	client.Close(d.client)
	if e := d.cmd.Process.Signal(syscall.SIGTERM); e != nil && !errors.Is(e, os.ErrProcessDone) {
		err = errors.Join(err, e)
	}
	select {
	case <-d.ended:
		return err
	case <-ctx.Done():
		return errors.Join(err, errors.New("it does not stop"), d.cmd.Process.Kill())
	}
}
