package supervise

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pelletier/go-toml/v2"
)

// maxSocketDir is how long containerd lets the path of the shims' sockets be.
const maxSocketDir = 42

// disabled are plugins of containerd that Cairn has no use for. Some of them
// would write outside the state directory (nri, opt).
var disabled = [...]string{
	"io.containerd.differ.v1.erofs",
	"io.containerd.http.v1.pprof",
	"io.containerd.image-verifier.v1.bindir",
	"io.containerd.internal.v1.opt",
	"io.containerd.internal.v1.tracing",
	"io.containerd.monitor.container.v1.restart",
	"io.containerd.monitor.task.v1.cgroups",
	"io.containerd.nri.v1.nri",
	"io.containerd.server.v1.debug",
	"io.containerd.server.v1.grpc-tcp",
	"io.containerd.server.v1.metrics",
	"io.containerd.snapshotter.v1.blockfile",
	"io.containerd.snapshotter.v1.erofs",
	"io.containerd.tracing.processor.v1.otlp",
}

// shimEnv keeps the memory of idle shims small: one of them runs per container.
var shimEnv = [...]string{"GOGC=20", "GOMEMLIMIT=12MiB", "GODEBUG=madvdontneed=1"}

// config is the part of containerd's configuration that is not its default.
type config struct {
	Version         int                       `toml:"version"`
	Root            string                    `toml:"root"`
	State           string                    `toml:"state"`
	Temp            string                    `toml:"temp"`
	DisabledPlugins []string                  `toml:"disabled_plugins"`
	Imports         []string                  `toml:"imports"`
	Debug           map[string]string         `toml:"debug"`
	Plugins         map[string]map[string]any `toml:"plugins"`
}

// configuration is the file that containerd is started with.
func (o Options) configuration() ([]byte, error) {
	b, err := toml.Marshal(config{
		Version:         4,
		Root:            filepath.Join(o.Dir, "root"),
		State:           filepath.Join(o.Dir, "state"),
		Temp:            filepath.Join(o.Dir, "tmp"),
		DisabledPlugins: disabled[:],
		Imports:         []string{},
		Debug:           map[string]string{"level": "warn"},
		Plugins: map[string]map[string]any{
			"io.containerd.server.v1.grpc":  {"address": o.Socket},
			"io.containerd.server.v1.ttrpc": {"address": o.Socket + ".ttrpc"},
			"io.containerd.shim.v1.manager": {"socket_dir": o.shimSockets(), "env": shimEnv[:]},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("write the configuration of containerd: %w", err)
	}
	return b, nil
}

// shimSockets is the directory of the shims' sockets. Socket paths are short:
// a long state directory gets one in /run, named after it.
func (o Options) shimSockets() string {
	dir := filepath.Join(o.Dir, "s")
	if len(dir) <= maxSocketDir {
		return dir
	}
	sum := sha256.Sum256([]byte(o.Dir))
	return filepath.Join(runDir, hex.EncodeToString(sum[:6]), "s")
}

// runDir is where the sockets go that have no room in the state directory.
const runDir = "/run/cairn"

// prepare makes the directories, and writes the configuration.
func (o Options) prepare() (path string, err error) {
	for _, d := range []string{o.Dir, filepath.Dir(o.Socket), filepath.Join(o.Dir, "root"), filepath.Join(o.Dir, "state"), filepath.Join(o.Dir, "tmp"), o.shimSockets()} {
		// Containers run from below the state directory as users of their own
		// ranges: they must be able to pass, and nothing more.
		if err := os.MkdirAll(d, 0o711); err != nil {
			return "", err
		}
	}
	b, err := o.configuration()
	if err != nil {
		return "", err
	}
	path = filepath.Join(o.Dir, "config.toml")
	tmp := path + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return "", err
	}
	return path, os.Rename(tmp, path)
}
