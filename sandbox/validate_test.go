package sandbox

import (
	"errors"
	"strings"
	"testing"
)

func TestCheckConfig(t *testing.T) {
	s := &Service{o: Options{MountSources: []string{"/srv/models"}, DefaultDisk: 7 << 20}}
	cases := []struct {
		name  string
		c     Config
		code  Code
		field string
	}{
		{name: "empty"},
		{name: "whole", c: Config{
			Command: []string{"/bin/sleep", "1"}, Env: map[string]string{"A": "b=c"}, Cwd: "/x", User: "www:www",
			Network: NetworkEgress, Resources: Resources{CPUs: 0.5, MemoryBytes: 64 << 20, PIDs: 32, DiskBytes: 1 << 20},
			Mounts: []Mount{{"/srv/models/a", "/models"}},
		}},
		{name: "program", c: Config{Command: []string{""}}, code: CodeInvalid, field: "command"},
		{name: "NUL", c: Config{Command: []string{"a\x00"}}, code: CodeInvalid, field: "command"},
		{name: "variable", c: Config{Env: map[string]string{"A=B": ""}}, code: CodeInvalid, field: "env"},
		{name: "cwd", c: Config{Cwd: "x"}, code: CodeInvalid, field: "cwd"},
		{name: "user", c: Config{User: "a/b"}, code: CodeInvalid, field: "user"},
		{name: "network", c: Config{Network: "host"}, code: CodeInvalid, field: "network"},
		{name: "cpus", c: Config{Resources: Resources{CPUs: -1}}, code: CodeInvalid, field: "resources.cpus"},
		{name: "memory", c: Config{Resources: Resources{MemoryBytes: 1}}, code: CodeInvalid, field: "resources.memory_bytes"},
		{name: "pids", c: Config{Resources: Resources{PIDs: 1}}, code: CodeInvalid, field: "resources.pids"},
		{name: "disk", c: Config{Resources: Resources{DiskBytes: 1}}, code: CodeInvalid, field: "resources.disk_bytes"},
		{name: "mount elsewhere", c: Config{Mounts: []Mount{{"/etc/shadow", "/x"}}}, code: CodeForbidden, field: "mounts"},
		{name: "mount by dots", c: Config{Mounts: []Mount{{"/srv/models/../../etc", "/x"}}}, code: CodeForbidden, field: "mounts"},
		{name: "mount of a sibling", c: Config{Mounts: []Mount{{"/srv/models2", "/x"}}}, code: CodeForbidden, field: "mounts"},
		{name: "mount over proc", c: Config{Mounts: []Mount{{"/srv/models", "/proc/x"}}}, code: CodeInvalid, field: "mounts"},
		{name: "mount over root", c: Config{Mounts: []Mount{{"/srv/models", "/"}}}, code: CodeInvalid, field: "mounts"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cfg := c.c
			err := s.checkConfig(&cfg)
			if CodeOf(err) != c.code {
				t.Fatalf("got %v, want code %q", err, c.code)
			}
			var e *Error
			if errors.As(err, &e) && e.Field != c.field {
				t.Errorf("field %q, want %q", e.Field, c.field)
			}
			if err == nil && (cfg.Network == "" || cfg.Resources.DiskBytes == 0) {
				t.Errorf("defaults are not filled in: %+v", cfg)
			}
		})
	}
}

func FuzzCheckName(f *testing.F) {
	for _, s := range []string{"", "a", "a-b", "-a", "sbx_1", "a\n", strings.Repeat("x", 64), "ü"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if checkName("name", name) != nil {
			return
		}
		if name == "" || len(name) > maxName || strings.ContainsAny(name, "/\x00\n ") || strings.HasPrefix(name, ".") {
			t.Errorf("%q is taken for a name", name)
		}
		if h := hostname(name); len(h) > 63 || strings.Trim(h, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			t.Errorf("host name %q of %q", h, name)
		}
	})
}

func TestCheckpointDigest(t *testing.T) {
	a := CheckpointDigest([]string{"top", "bottom"})
	if a == CheckpointDigest([]string{"bottom", "top"}) || a == CheckpointDigest([]string{"top"}) {
		t.Error("order or number of layers does not change the digest")
	}
	// printf 'cairn checkpoint 1\nbottom\ntop\n' | sha256sum
	const want = "sha256:e6ed73b7b696db909cbc8fa573284596e46e0a66c957b3cf19b37de1d0f19cae"
	if a != want {
		t.Errorf("got %s, want %s", a, want)
	}
}

func TestCutSuffix(t *testing.T) {
	above, ok := cutSuffix([]string{"c", "b", "a"}, []string{"b", "a"})
	if !ok || len(above) != 1 || above[0] != "c" {
		t.Errorf("got %v, %v", above, ok)
	}
	if _, ok := cutSuffix([]string{"a"}, []string{"b", "a"}); ok {
		t.Error("a longer suffix fits")
	}
}
