package sandbox

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds on what a caller may send. They keep metadata small and the overlay's
// option strings short; the API's schema repeats those it can express.
const (
	maxName       = 63
	maxNotes      = 4096
	maxLabels     = 64
	maxLabelBytes = 256
	maxArgs       = 4096
	maxArgBytes   = 128 << 10
	maxEnv        = 1024
	maxMounts     = 32
	maxPathBytes  = 4096
	minMemory     = 6 << 20
)

var namePattern = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9_.-]*[a-zA-Z0-9])?$`)

// mountsForbidden are targets that a mount must not cover: what keeps a sandbox working.
var mountsForbidden = []string{"/", "/proc", "/sys", "/dev", "/run", "/.cairn", "/etc"}

func checkName(field, name string) error {
	if len(name) > maxName || !namePattern.MatchString(name) {
		return Invalid(field, "a name has 1 to %d letters, digits, '.', '_' or '-', and begins and ends with a letter or digit", maxName)
	}
	if strings.HasPrefix(name, "sbx_") || strings.HasPrefix(name, "ckpt_") || strings.HasPrefix(name, "img_") {
		return Invalid(field, "a name must not look like an id")
	}
	return nil
}

func checkLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return Invalid("labels", "at most %d labels", maxLabels)
	}
	for k, v := range labels {
		if k == "" || len(k) > maxLabelBytes || len(v) > maxLabelBytes || !utf8.ValidString(k) || !utf8.ValidString(v) {
			return Invalid("labels", "label keys have 1 to %d bytes, values at most %d, both UTF-8", maxLabelBytes, maxLabelBytes)
		}
	}
	return nil
}

func checkNotes(notes string) error {
	if len(notes) > maxNotes {
		return Invalid("notes", "at most %d bytes", maxNotes)
	}
	return nil
}

func checkCommand(field string, command []string) error {
	if len(command) > maxArgs {
		return Invalid(field, "at most %d arguments", maxArgs)
	}
	for _, a := range command {
		if len(a) > maxArgBytes || strings.ContainsRune(a, 0) {
			return Invalid(field, "an argument has at most %d bytes and no NUL", maxArgBytes)
		}
	}
	if len(command) > 0 && command[0] == "" {
		return Invalid(field, "the first argument is the program and must not be empty")
	}
	return nil
}

func checkEnv(env map[string]string) error {
	if len(env) > maxEnv {
		return Invalid("env", "at most %d variables", maxEnv)
	}
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) || len(k)+len(v) > maxArgBytes {
			return Invalid("env", "a variable's name is not empty and has no '=' or NUL; name and value have at most %d bytes", maxArgBytes)
		}
	}
	return nil
}

func checkCwd(cwd string) error {
	if cwd == "" {
		return nil
	}
	if !strings.HasPrefix(cwd, "/") || len(cwd) > maxPathBytes || strings.ContainsRune(cwd, 0) {
		return Invalid("cwd", "an absolute path of at most %d bytes", maxPathBytes)
	}
	return nil
}

func checkUser(user string) error {
	if len(user) > 2*maxName || strings.ContainsAny(user, "\x00\n/ ") {
		return Invalid("user", `"name", "uid", "name:group" or "uid:gid"`)
	}
	return nil
}

// checkConfig checks a configuration and fills in defaults.
func (s *Service) checkConfig(c *Config) error {
	if err := checkCommand("command", c.Command); err != nil {
		return err
	}
	if err := checkEnv(c.Env); err != nil {
		return err
	}
	if err := checkCwd(c.Cwd); err != nil {
		return err
	}
	if err := checkUser(c.User); err != nil {
		return err
	}
	switch c.Network {
	case "":
		c.Network = NetworkNone
	case NetworkNone, NetworkEgress:
	default:
		return Invalid("network", `"none" or "egress"`)
	}
	r := &c.Resources
	switch {
	case r.CPUs < 0 || r.CPUs > 1024 || (r.CPUs > 0 && r.CPUs < 0.01):
		return Invalid("resources.cpus", "between 0.01 and 1024, or 0 for no limit")
	case r.MemoryBytes < 0 || (r.MemoryBytes > 0 && r.MemoryBytes < minMemory):
		return Invalid("resources.memory_bytes", "at least %d, or 0 for no limit", minMemory)
	case r.PIDs < 0 || (r.PIDs > 0 && r.PIDs < 16):
		return Invalid("resources.pids", "at least 16, or 0 for no limit")
	case r.DiskBytes < 0 || (r.DiskBytes > 0 && r.DiskBytes < 1<<20):
		return Invalid("resources.disk_bytes", "at least %d, or 0 for no limit", 1<<20)
	}
	if r.DiskBytes == 0 {
		r.DiskBytes = s.o.DefaultDisk
	}
	if len(c.Mounts) > maxMounts {
		return Invalid("mounts", "at most %d", maxMounts)
	}
	for i := range c.Mounts {
		if err := s.checkMount(&c.Mounts[i]); err != nil {
			return err
		}
	}
	hooks, err := s.checkHooks(c.Hooks)
	c.Hooks = hooks
	return err
}

func (s *Service) checkMount(m *Mount) error {
	if !path.IsAbs(m.Source) || !path.IsAbs(m.Target) || len(m.Source) > maxPathBytes || len(m.Target) > maxPathBytes {
		return Invalid("mounts", "source and target are absolute paths")
	}
	m.Source, m.Target = path.Clean(m.Source), path.Clean(m.Target)
	allowed := slices.ContainsFunc(s.o.MountSources, func(p string) bool { return within(m.Source, p) })
	if !allowed {
		return &Error{Code: CodeForbidden, Field: "mounts", Message: "the operator's configuration does not allow " + m.Source + " to be mounted"}
	}
	for _, f := range mountsForbidden {
		if m.Target == f || (f != "/" && f != "/etc" && within(m.Target, f)) {
			return Invalid("mounts", "a mount must not cover %s", f)
		}
	}
	return nil
}

// within says whether p is dir or below it; both clean and absolute.
func within(p, dir string) bool {
	dir = path.Clean(dir)
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

func checkProcesses(p string) error {
	switch p {
	case "", "auto", "include", "exclude":
		return nil
	}
	return Invalid("processes", `"auto", "include" or "exclude"`)
}
