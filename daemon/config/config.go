// Package config reads and checks the daemon's configuration file. Every field
// has a default; a file sets only what differs. Unknown keys are refused, so that
// a misspelt one cannot go unseen.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
)

// Config is the whole configuration. Sizes are bytes.
type Config struct {
	StateDir string `toml:"state_dir" comment:"Metadata, layers and containerd's data."`
	RunDir   string `toml:"run_dir" comment:"Sockets and lock. Short: a socket's path has at most 107 bytes."`
	IDBase   uint32 `toml:"id_base" comment:"First host uid and gid of the sandboxes' ranges, 65536 for each."`

	API        API        `toml:"api"`
	Containerd Containerd `toml:"containerd"`
	Pool       Pool       `toml:"pool"`
	Pages      Pages      `toml:"pages"`
	Warm       Warm       `toml:"warm" comment:"Blank containers kept ready."`
	Network    Network    `toml:"network"`
	Limits     Limits     `toml:"limits"`
	Mounts     Mounts     `toml:"mounts"`
	Hooks      Hooks      `toml:"hooks"`
	Images     Images     `toml:"images"`
	Log        Log        `toml:"log"`
}

// API is where the daemon listens.
type API struct {
	Socket      string `toml:"socket" comment:"Unix socket; empty: run_dir/cairn.sock."`
	Group       string `toml:"group" comment:"Group that may use the socket besides its owner; empty: none."`
	Listen      string `toml:"listen" comment:"host:port of a TCP listener; empty: none. It needs token_file."`
	TokenFile   string `toml:"token_file" comment:"File with the bearer token of the TCP listener; mode 0600."`
	MaxInFlight int    `toml:"max_in_flight" comment:"Requests served at once; more wait, then get 503."`
}

// Containerd says which containerd to use.
type Containerd struct {
	Address  string `toml:"address" comment:"Socket of a containerd that runs; empty: the daemon supervises its own."`
	Binaries string `toml:"binaries" comment:"Directory of containerd, containerd-shim-runc-v2, runc, cairn-init, cairn-criu and criu/; empty: beside cairnd, or ../libexec/cairn."`
}

// Pool is about layers.
type Pool struct {
	Dir      string `toml:"dir" comment:"Directory of the layers; empty: state_dir/pool. A file system with reflinks and project quotas (XFS with prjquota) serves best."`
	MaxDepth int    `toml:"max_depth" comment:"Checkpoint layers in a stack before they are squashed."`
}

// Pages is about the memory of processes in checkpoints.
type Pages struct {
	CompressAfter     time.Duration `toml:"-"`
	CompressAfterText string        `toml:"compress_after" comment:"How long a checkpoint's processes are not restored or forked before their memory is compressed, which makes the next restore slower; empty or 0: never."`
}

// Warm sizes the pool of blank containers, by network.
type Warm struct {
	None   int `toml:"none"`
	Egress int `toml:"egress"`
}

// Network is about sandboxes with network "egress".
type Network struct {
	Bridge  string   `toml:"bridge" comment:"Name of the bridge; empty: made from state_dir."`
	Subnet  string   `toml:"subnet" comment:"IPv4 prefix of the sandboxes' addresses; empty: one that the host has no route into."`
	Deny    []string `toml:"deny" comment:"Destinations that are not reachable, besides the host's own addresses."`
	Plugins string   `toml:"plugins" comment:"Directory of the CNI plugins."`
	DNS     []string `toml:"dns" comment:"Name servers; empty: the host's."`
}

// Limits bound what callers may take. 0 means none where it says so.
type Limits struct {
	Sandboxes    int           `toml:"sandboxes" comment:"Live sandboxes; 0: no bound."`
	Forks        int           `toml:"forks" comment:"Children of one fork request."`
	DiskBytes    int64         `toml:"disk_bytes" comment:"Disk limit of a sandbox that asks for none; 0: no limit."`
	OutputBytes  int64         `toml:"output_bytes" comment:"Output of one process, stdout and stderr each."`
	StdinBytes   int64         `toml:"stdin_bytes" comment:"Standard input given with a command."`
	UploadBytes  int64         `toml:"upload_bytes" comment:"A file or archive put into a sandbox."`
	LockWait     time.Duration `toml:"-"`
	LockWaitText string        `toml:"lock_wait" comment:"How long an operation waits for another one on the same sandbox."`
}

// Mounts is what callers may mount.
type Mounts struct {
	Allow []string `toml:"allow" comment:"Host paths below which sandboxes may be given read-only mounts."`
}

// Hooks is which addresses hooks of sandboxes may post to.
type Hooks struct {
	Allow []string `toml:"allow" comment:"http and https addresses; hooks may post to what is below them, by whole path segments."`
}

// Images bounds what an image may unpack to.
type Images struct {
	MaxBytes   int64 `toml:"max_bytes"`
	MaxEntries int64 `toml:"max_entries"`
}

// Log is about the daemon's log on standard error.
type Log struct {
	Level  string `toml:"level" comment:"debug, info, warn or error."`
	Format string `toml:"format" comment:"text or json."`
}

// Default gives the defaults. With root, everything is below it; without, the
// system's usual places are used.
func Default(root string) Config {
	c := Config{
		StateDir: "/var/lib/cairn", RunDir: "/run/cairn", IDBase: 1 << 30,
		API:     API{MaxInFlight: 512},
		Pool:    Pool{MaxDepth: 24},
		Pages:   Pages{CompressAfter: time.Hour, CompressAfterText: "1h"},
		Warm:    Warm{None: 4, Egress: 0},
		Network: Network{Deny: []string{"169.254.0.0/16"}, Plugins: "/usr/lib/cni"},
		Limits: Limits{
			Forks: 256, OutputBytes: 64 << 20, StdinBytes: 16 << 20, UploadBytes: 4 << 30,
			LockWait: 10 * time.Second, LockWaitText: "10s",
		},
		Images: Images{MaxBytes: 64 << 30, MaxEntries: 4_000_000},
		Log:    Log{Level: "info", Format: "text"},
	}
	if root != "" {
		c.StateDir, c.RunDir = root, filepath.Join(root, "run")
	}
	return c
}

// Load reads the file at path over the defaults; path "" gives the defaults.
// The error names each wrong key.
func Load(path, root string) (Config, error) {
	c := Default(root)
	if path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return Config{}, err
		}
		if err := Parse(data, &c); err != nil {
			return Config{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	if root != "" {
		abs, err := filepath.Abs(root)
		if err != nil {
			return Config{}, err
		}
		c.StateDir, c.RunDir = abs, filepath.Join(abs, "run")
	}
	c.fill()
	if err := c.Check(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// Parse reads TOML over what c holds.
func Parse(data []byte, c *Config) error {
	d := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields()
	err := d.Decode(c)
	var strict *toml.StrictMissingError
	if errors.As(err, &strict) {
		var keys []string
		for _, e := range strict.Errors {
			row, _ := e.Position()
			keys = append(keys, fmt.Sprintf("line %d: unknown key %s", row, strings.Join(e.Key(), ".")))
		}
		return errors.New(strings.Join(keys, "; "))
	}
	var decode *toml.DecodeError
	if errors.As(err, &decode) {
		row, col := decode.Position()
		return fmt.Errorf("line %d, column %d: %w", row, col, err)
	}
	return err
}

// fill derives what was left empty.
func (c *Config) fill() {
	if c.API.Socket == "" {
		c.API.Socket = filepath.Join(c.RunDir, "cairn.sock")
	}
	if c.Pool.Dir == "" {
		c.Pool.Dir = filepath.Join(c.StateDir, "pool")
	}
	if d, err := time.ParseDuration(c.Limits.LockWaitText); err == nil {
		c.Limits.LockWait = d
	}
	c.Pages.CompressAfter = 0
	if d, err := time.ParseDuration(c.Pages.CompressAfterText); err == nil {
		c.Pages.CompressAfter = d
	}
}

// Check says everything that is wrong, joined.
func (c Config) Check() error {
	var errs []error
	wrong := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{key}, args...)...))
	}
	for key, p := range map[string]string{"state_dir": c.StateDir, "run_dir": c.RunDir, "api.socket": c.API.Socket, "pool.dir": c.Pool.Dir} {
		if !filepath.IsAbs(p) {
			wrong(key, "%q is not an absolute path", p)
		}
	}
	const socketPath = 107 // of sockaddr_un, without the NUL
	for _, p := range []string{c.API.Socket, filepath.Join(c.RunDir, "containerd.sock.ttrpc")} {
		if len(p) > socketPath {
			wrong("run_dir", "the socket path %s has more than %d bytes", p, socketPath)
		}
	}
	if c.IDBase < 1<<16 || c.IDBase%(1<<16) != 0 {
		wrong("id_base", "%d is not a multiple of 65536 above 0", c.IDBase)
	}
	if c.API.Listen != "" && c.API.TokenFile == "" {
		wrong("api.token_file", "a TCP listener needs a token")
	}
	if c.API.MaxInFlight < 1 {
		wrong("api.max_in_flight", "at least 1")
	}
	if c.Pool.MaxDepth < 2 || c.Pool.MaxDepth > 400 {
		wrong("pool.max_depth", "between 2 and 400")
	}
	if d, err := time.ParseDuration(c.Pages.CompressAfterText); c.Pages.CompressAfterText != "" && (err != nil || d < 0) {
		wrong("pages.compress_after", `%q is not a duration such as "1h"`, c.Pages.CompressAfterText)
	}
	if c.Warm.None < 0 || c.Warm.Egress < 0 || c.Warm.None+c.Warm.Egress > 4096 {
		wrong("warm", "0 to 4096 containers")
	}
	if p, err := netip.ParsePrefix(c.Network.Subnet); c.Network.Subnet != "" && (err != nil || !p.Addr().Is4() || p.Bits() > 29) {
		wrong("network.subnet", "%q is not an IPv4 prefix of at most 29 bits", c.Network.Subnet)
	}
	for _, d := range c.Network.Deny {
		if _, err := netip.ParsePrefix(d); err != nil {
			wrong("network.deny", "%q is not a prefix", d)
		}
	}
	for _, d := range c.Network.DNS {
		if _, err := netip.ParseAddr(d); err != nil {
			wrong("network.dns", "%q is not an address", d)
		}
	}
	if c.Limits.Forks < 1 || c.Limits.Sandboxes < 0 || c.Limits.DiskBytes < 0 || c.Limits.OutputBytes < 1 || c.Limits.StdinBytes < 0 || c.Limits.UploadBytes < 1 {
		wrong("limits", "negative, or 0 where there must be a bound")
	}
	if d, err := time.ParseDuration(c.Limits.LockWaitText); err != nil || d <= 0 {
		wrong("limits.lock_wait", `%q is not a duration such as "10s"`, c.Limits.LockWaitText)
	}
	for _, m := range c.Mounts.Allow {
		if !filepath.IsAbs(m) {
			wrong("mounts.allow", "%q is not an absolute path", m)
		}
	}
	for _, h := range c.Hooks.Allow {
		if u, err := url.Parse(h); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			wrong("hooks.allow", "%q is not an http or https address without user, query and fragment", h)
		}
	}
	if c.Images.MaxBytes < 1 || c.Images.MaxEntries < 1 {
		wrong("images", "bounds must be above 0")
	}
	switch c.Log.Level {
	case "debug", "info", "warn", "error":
	default:
		wrong("log.level", "%q is not debug, info, warn or error", c.Log.Level)
	}
	if c.Log.Format != "text" && c.Log.Format != "json" {
		wrong("log.format", "%q is not text or json", c.Log.Format)
	}
	return errors.Join(errs...)
}

// TOML writes the configuration as a file with a comment for each key.
func (c Config) TOML() ([]byte, error) { return toml.Marshal(c) }
