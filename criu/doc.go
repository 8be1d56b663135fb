// Package criu dumps the processes of a running container into files, and restores them,
// in the same container or in another one. It drives CRIU.
//
// Words: the tree is the stem and everything below it; PID 1 of the container is not part
// of it. Images are the files of one dump, in a directory of their own (FORMAT.md). The
// helper is the program cairn-criu, one process for each dump or restore.
//
// A tree is dumped and restored inside the namespaces of its container. The helper runs
// outside; the CRIU that it starts joins all namespaces, the user namespace included, and
// the images reach it as a descriptor of a mount that maps owners, read-only in a restore.
// What CRIU restores are its own children, so they can't have more rights than it has,
// which is no more than the container's root can have. Namespaces, mounts, control groups
// and PID 1 stay as they are.
//
//	daemon ── Prepared ──socket──> cairn-criu (host)
//	                                 └─ cairn-criu swrk: forks, joins the namespaces
//	                                      └─ criu swrk (inside, pid below 300)
//
// Invariants:
//   - A tree runs on after a dump that failed, and after the death of the daemon or of the
//     helper: CRIU is never killed in the middle of a dump. It notices that nobody answers
//     and lets the tree go.
//   - A restore that fails leaves nothing but PID 1.
//   - What was restored has the system call filters, the no_new_privs bit and at most the
//     capabilities of PID 1; a restore that finds otherwise ends the tree.
//   - A dump that would lose something silently is refused: a process outside of the tree,
//     a system call filter of a process's own.
//
// CRIU suspends the system call filters of whom it dumps, which the kernel allows only to
// the host's root. Inside it runs under a filter itself that lets it believe that this was
// done, and that there are no filters to be read; the helper reads those of PID 1, as the
// host's root, and adds them to the images. CRIU also asks for the paths of watched files
// by their handles, which only the host's root may open: the filter lets the helper answer.
// So it does for mapped files that were deleted, and for memfds, when a process has such.
//
// A process whose parent ended is the stem's child, also when it was restored: the helper
// traces CRIU until the root is there, and makes that a child subreaper before CRIU does.
// No other subreaper than the stem may have such in a session whose leader has ended.
//
// What belongs to the container and not to a process is carried by functions of its own:
// SaveShm and SaveIPC while the tree stands still, RestoreShm and RestoreIPC after Clear.
package criu
