package runtime

import (
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

const (
	initName = "cairn-init"
	initDir  = "/.cairn"
	ioDir    = "/run/cairn"
)

// mountPoints are the directories that the skeleton must have.
func mountPoints() []string {
	return []string{"proc", "dev", "sys", "run/cairn", ".cairn"}
}

// blank is the specification of a blank container.
type blank struct {
	name     string
	slot     int
	idBase   uint32
	io       string // host path of its /run/cairn
	skeleton string
	initDir  string
	cgroup   string
	shm      int64
}

// spec is Docker's idea of a container, with a user namespace of its own and
// fewer capabilities.
func (b blank) spec() (*specs.Spec, error) {
	caps := capabilities()
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: b.idBase, Size: IDs}}
	oom := 500 // when the host runs out of memory, its own services go last
	nofile, err := fileLimit()
	if err != nil {
		return nil, err
	}
	s := &specs.Spec{
		Version:  specs.Version,
		Root:     &specs.Root{Path: b.skeleton},
		Hostname: "cairn",
		Process: &specs.Process{
			Args:            []string{initDir + "/" + initName},
			Env:             []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "GOMAXPROCS=1", "GOGC=20"},
			Cwd:             "/",
			NoNewPrivileges: true,
			OOMScoreAdj:     &oom,
			Capabilities:    &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_NOFILE", Soft: nofile, Hard: nofile},
				{Type: "RLIMIT_CORE", Soft: 0, Hard: 0},
			},
		},
		Mounts: b.mounts(),
		Linux: &specs.Linux{
			UIDMappings: ids,
			GIDMappings: ids,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.UserNamespace},
				{Type: specs.PIDNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.CgroupNamespace},
			},
			CgroupsPath: b.cgroup,
			Resources: &specs.LinuxResources{
				Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
			},
			// Interfaces added later have no IPv6: its neighbours are not filtered.
			Sysctl: map[string]string{
				"net.ipv6.conf.default.disable_ipv6": "1",
				"net.ipv4.ping_group_range":          "0 65535",
			},
			RootfsPropagation: "private",
			MaskedPaths:       maskedPaths(),
			ReadonlyPaths:     readonlyPaths(),
		},
	}
	s.Linux.Seccomp = filter(s)
	return s, nil
}

func (b blank) mounts() []specs.Mount {
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=1m"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", fmt.Sprintf("size=%d", b.shm)}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: ioDir, Type: "bind", Source: b.io, Options: []string{"bind", "private", "rw", "nosuid", "nodev", "noexec"}},
		{Destination: initDir, Type: "bind", Source: b.initDir, Options: []string{"bind", "private", "ro", "nosuid", "nodev"}},
	}
}

// capabilities is Docker's default set without those for raw sockets, device
// nodes and the audit log.
func capabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
		"CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_SETFCAP",
	}
}

func maskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
	}
}

func readonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

// wantedFiles is how many descriptors a process in a sandbox may have open.
const wantedFiles = 1 << 16

// fileLimit is wantedFiles, or what this process may give away: without
// CAP_SYS_RESOURCE nobody can be given more.
func fileLimit() (uint64, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	return min(wantedFiles, r.Max), nil
}
