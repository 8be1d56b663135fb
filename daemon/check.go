package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"cairn/criu"
	"cairn/daemon/config"
)

// HostCheck is one thing that was looked at on the host.
type HostCheck struct {
	What     string
	Required bool
	Detail   string
	Err      error // nil: it is there
}

// CheckHost looks at what the host must and may have. It changes nothing.
func CheckHost(c config.Config) []HostCheck {
	checks := []HostCheck{checkKernel(), checkRoot(), checkFileSystem("overlay"), checkCgroup(), checkSeccomp()}
	if c.Containerd.Address == "" {
		for _, name := range []string{"containerd", "containerd-shim-runc-v2", "runc"} {
			checks = append(checks, checkBinary(c, name))
		}
	}
	checks = append(checks, checkBinary(c, "cairn-init"))
	checks = append(checks, checkCRIU(c))
	plugin := HostCheck{What: "CNI plugins (network egress)", Detail: c.Network.Plugins}
	_, plugin.Err = os.Stat(c.Network.Plugins + "/bridge")
	return append(checks, plugin)
}

// checkCRIU looks whether processes can be checkpointed.
func checkCRIU(c config.Config) (r HostCheck) {
	r.What = "CRIU (process checkpoints)"
	helper, err := binary(c.Containerd.Binaries, helperName)
	if err != nil {
		r.Err = err
		return r
	}
	bundle, err := criuBundle(c.Containerd.Binaries)
	if err != nil {
		r.Err = err
		return r
	}
	probe, err := criu.New(criu.Options{Bundle: criu.Bundle{Dir: bundle}, Helper: helper, External: []string{controlDir}})
	if err != nil {
		r.Err = err
		return r
	}
	defer probe.Close()
	f, err := probe.Probe(context.Background())
	if r.Detail = f.Version; err != nil {
		r.Err = err
	} else if !f.Supported {
		r.Err = errors.New(strings.Join(f.Reasons, "; "))
	}
	return r
}

func checkKernel() HostCheck {
	r := HostCheck{What: "Linux 6.7 or newer", Required: true}
	var uts unix.Utsname
	if r.Err = unix.Uname(&uts); r.Err != nil {
		return r
	}
	r.Detail = unix.ByteSliceToString(uts.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(r.Detail, "%d.%d", &major, &minor); err != nil {
		r.Err = fmt.Errorf("cannot read the version %q", r.Detail)
	} else if major < 6 || (major == 6 && minor < 7) {
		r.Err = fmt.Errorf("%s has no lowerdir+ option of overlayfs", r.Detail)
	}
	return r
}

func checkRoot() HostCheck {
	r := HostCheck{What: "root", Required: true}
	if os.Geteuid() != 0 {
		r.Err = errors.New("mounting and containers need it")
	}
	return r
}

func checkFileSystem(name string) HostCheck {
	r := HostCheck{What: "file system " + name, Required: true}
	data, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		r.Err = err
	} else if !strings.Contains(string(data), "\t"+name+"\n") {
		r.Err = errors.New("not known to the kernel; load its module")
	}
	return r
}

func checkCgroup() HostCheck {
	r := HostCheck{What: "control groups", Required: true}
	var st unix.Statfs_t
	if r.Err = unix.Statfs("/sys/fs/cgroup", &st); r.Err != nil {
		return r
	}
	r.Detail = "version 1"
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		r.Detail = "version 2"
	}
	return r
}

func checkSeccomp() HostCheck {
	r := HostCheck{What: "seccomp filters", Required: true}
	_, r.Err = os.Stat("/proc/sys/kernel/seccomp/actions_avail")
	return r
}

func checkBinary(c config.Config, name string) HostCheck {
	p, err := binary(c.Containerd.Binaries, name)
	return HostCheck{What: name, Required: true, Detail: p, Err: err}
}
