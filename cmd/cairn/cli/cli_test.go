package cli_test

import (
	"context"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"cairn/api"
	"cairn/api/apitest"
	"cairn/api/types"
	"cairn/cmd/cairn/cli"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"cairn": func() {
			os.Exit(cli.Main(context.Background(), os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, os.Getenv))
		},
	})
}

// TestScripts runs command lines against a server in this process whose service
// is a stand-in.
func TestScripts(t *testing.T) {
	defer goleak.VerifyNone(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			svc := apitest.New(e.T().(testing.TB))
			handler, err := api.NewServer(api.Options{
				Service: svc, Images: svc, SpoolDir: e.WorkDir,
				Info: func(context.Context) (types.Info, error) {
					i := types.Info{Version: "1.2.3", Features: map[string]string{"reflink": "no"}, Limits: map[string]int64{"sandboxes": 9}, StartedAt: time.Now()}
					i.Pool.Warm = map[string]int{"none": 4}
					return i, nil
				},
			})
			if err != nil {
				return err
			}
			socket := filepath.Join(e.WorkDir, "s")
			l, err := net.Listen("unix", socket)
			if err != nil {
				return fmt.Errorf("listen: %w", err)
			}
			srv := httptest.NewUnstartedServer(handler)
			srv.Listener.Close()
			srv.Listener = l
			srv.Start()
			e.Defer(srv.Close)
			e.Setenv("CAIRN_HOST", "unix://"+socket)
			e.Setenv("SANDBOX_ROOT", svc.Dir)
			return nil
		},
	})
}
