package runtime

import (
	"slices"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// filter is the system call filter: containerd's default profile (Docker's) for
// the capabilities of s, without io_uring. Programs that find no io_uring
// (ENOSYS) fall back; it cannot be checkpointed, and it goes past this filter.
// No namespace can be made: the profile denies clone with such flags, and
// unshare and setns at all, as CAP_SYS_ADMIN is not among the capabilities.
func filter(s *specs.Spec) *specs.LinuxSeccomp {
	p := seccomp.DefaultProfile(s)
	denied := []string{"io_uring_setup", "io_uring_enter", "io_uring_register"}
	for i := range p.Syscalls {
		p.Syscalls[i].Names = slices.DeleteFunc(p.Syscalls[i].Names, func(n string) bool { return slices.Contains(denied, n) })
	}
	nosys := uint(unix.ENOSYS)
	p.Syscalls = append(p.Syscalls, specs.LinuxSyscall{Names: denied, Action: specs.ActErrno, ErrnoRet: &nosys})
	return p
}
