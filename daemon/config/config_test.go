package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestDefaultsAreValidAndPrintable(t *testing.T) {
	for _, root := range []string{"", "/var/tmp/x"} {
		c, err := Load("", root)
		if err != nil {
			t.Fatal(err)
		}
		text, err := c.TOML()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "cairn.toml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		again, err := Load(file, "")
		if err != nil {
			t.Fatalf("what is printed cannot be read: %v\n%s", err, text)
		}
		if second, err := again.TOML(); err != nil || string(second) != string(text) {
			t.Errorf("printed, read and printed again it is\n%s, %v", second, err)
		}
	}
}

func TestRootKeepsEverythingBelow(t *testing.T) {
	c, err := Load("", "/var/tmp/x")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{c.StateDir, c.RunDir, c.API.Socket, c.Pool.Dir} {
		if p != "/var/tmp/x" && !strings.HasPrefix(p, "/var/tmp/x/") {
			t.Errorf("%s is elsewhere", p)
		}
	}
	if c.Limits.LockWait != 10*time.Second {
		t.Errorf("lock_wait is %v", c.Limits.LockWait)
	}
}

func TestSampleIsValid(t *testing.T) {
	sample := filepath.Join("..", "..", "scripts", "systemd", "cairn.toml")
	if _, err := Load(sample, ""); err != nil {
		t.Fatal(err)
	}
	// Every default that it shows, commented out, is a key that exists.
	raw, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "# "); ok && strings.Contains(rest, " = ") {
			line = rest
		}
		b.WriteString(line)
	}
	c := Default("")
	if err := Parse([]byte(b.String()), &c); err != nil {
		t.Fatal(err)
	}
}

func TestWrongIsNamed(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"[api]\nsockett = 'x'", "api.sockett"},
		{"[api]\nlisten = '127.0.0.1:1'", "api.token_file"},
		{"id_base = 5", "id_base"},
		{"state_dir = 'x'", "state_dir"},
		{"[pool]\nmax_depth = 1", "pool.max_depth"},
		{"[warm]\nnone = -1", "warm"},
		{"[network]\nsubnet = '10.0.0.0/30'", "network.subnet"},
		{"[network]\ndeny = ['x']", "network.deny"},
		{"[network]\ndns = ['x']", "network.dns"},
		{"[limits]\nforks = 0", "limits"},
		{"[limits]\nlock_wait = 'soon'", "limits.lock_wait"},
		{"[mounts]\nallow = ['srv']", "mounts.allow"},
		{"[hooks]\nallow = ['hooks.example.com']", "hooks.allow"},
		{"[hooks]\nallow = ['https://u@hooks.example.com/']", "hooks.allow"},
		{"[log]\nlevel = 'loud'", "log.level"},
		{"[log]\nformat = 'xml'", "log.format"},
		{"run_dir = '/" + strings.Repeat("x", 100) + "'", "run_dir"},
		{"id_base = 'x'", "line 1"},
	} {
		file := filepath.Join(t.TempDir(), "cairn.toml")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(file, ""); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want %s named", c.text, err, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("[api]\nsocket = '/x'"))
	f.Add([]byte("[network]\ndeny = ['10.0.0.0/8']"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := Default("")
		if Parse(data, &c) == nil {
			c.fill()
			if err := c.Check(); err != nil && err.Error() == "" {
				t.Error("an error that says nothing")
			}
		}
	})
}
