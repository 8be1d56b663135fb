// Package guest is what runs inside a sandbox on Cairn's behalf: PID 1 and the stem, two
// roles of the one static program cairn-init.
//
// PID 1 reaps, starts the stem, and starts it again when there is none, unless the file
// /run/cairn/no-stem says that one is about to be restored. The stem is a child subreaper
// in a session of its own: it answers requests on /run/cairn/stem.sock (package wire) and
// is the ancestor of every agent process, so that a checkpoint of its tree is a checkpoint
// of the agent.
//
// Invariants:
//   - Neither role holds a descriptor, a working directory other than "/", or a mapping in
//     the sandbox's root, which is replaced under them. Programs come from the bind mount
//     /.cairn, sockets and records live in the bind mount /run/cairn. What they read of the
//     root (/etc/passwd) they open, read and close.
//   - A process's status record is written before the process is reaped: as long as there
//     is no record, the process, if only as a zombie, is still there. Whoever is killed in
//     between, its successor finishes the job.
//   - Only the parent waits, so a pid that is in the stem's table and not adopted is not
//     reused.
//   - The stem holds the master of each terminal and nothing else of it. It writes a status
//     record only after the terminal's last output, and hangs up when the process it was
//     opened for has ended. A terminal does not outlive its stem.
//   - Everything but these two roles may be hostile: a named pipe or a link in the place of
//     a file must not stall them. They have no more rights than the agent's root user has,
//     so losing them harms this sandbox only.
//
// Both roles are resident in every sandbox. They import no fmt, net or reflection.
package guest
