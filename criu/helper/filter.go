package helper

import "golang.org/x/sys/unix"

// dumpFilter is a system call filter for a dumping CRIU. CRIU suspends the filters of the
// processes it dumps, and reads them, both of which the kernel allows to nobody in a user
// namespace. It may believe that they are suspended: the filter that sandboxes have lets
// through all that CRIU makes the processes do, and a process that added a filter of its
// own is refused. And it is told that there are none to read: they are added to the
// images afterwards, as PID 1 has them (see addFilters). What it asks about file handles
// goes to the helper (see resolver). The IPC namespace that it may not enter is its own: it
// can't read the segments of others (see carrySegments).
//
// With mapped, the helper also answers what CRIU opens in /proc/PID/map_files: see openMapped.
func dumpFilter(mapped bool) []unix.SockFilter {
	const (
		offNr, offArg0, offArg1, offArg3 = 0, 16, 24, 40
		suspend                          = 1 << 21 // PTRACE_O_SUSPEND_SECCOMP
		getFilter                        = 0x420c  // PTRACE_SECCOMP_GET_FILTER
		allow                            = 0x7fff0000
		notify                           = 0x7fc00000
		errno                            = 0x00050000
	)
	load := func(off uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
	}
	equal := func(k uint32, jt, jf uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: jt, Jf: jf}
	}
	anyOf := func(k uint32, jt, jf uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: k, Jt: jt, Jf: jf}
	}
	ret := func(k uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k}
	}
	var opens []unix.SockFilter
	if mapped {
		const fromHere = 1<<32 + unix.AT_FDCWD // as 32 bits
		opens = []unix.SockFilter{
			load(offNr),
			equal(unix.SYS_OPENAT, 0, 4), // others: as below
			load(offArg0),
			equal(fromHere, 0, 1),
			ret(allow),
			ret(notify),
		}
	}
	return append(opens, []unix.SockFilter{
		load(offNr),
		equal(unix.SYS_OPEN_BY_HANDLE_AT, 11, 0), // notify
		equal(unix.SYS_SETNS, 6, 0),
		equal(unix.SYS_PTRACE, 0, 7), // others: allow
		load(offArg0),
		equal(getFilter, 8, 0),              // no filter at that index
		equal(unix.PTRACE_SETOPTIONS, 0, 4), // others: allow
		load(offArg3),
		anyOf(suspend, 3, 2), // done, allow
		load(offArg1),
		equal(unix.CLONE_NEWIPC, 1, 0), // done, allow
		ret(allow),
		ret(errno), // done: error 0
		ret(notify),
		ret(errno | uint32(unix.ENOENT)),
	}...)
}
