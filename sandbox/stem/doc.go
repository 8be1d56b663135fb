// Package stem is the host's side of a sandbox's stem: it starts, signals and feeds
// processes through the stem's socket, and learns of their output and their end from files.
//
// A Client works on a slot's directory, which the sandbox sees as /run/cairn:
//
//	stem.sock            the stem listens here
//	stem.log             what the stem had to complain about
//	no-stem              while it exists, PID 1 starts no stem
//	p/<id>/stdin         input given as a file
//	p/<id>/stdout,stderr output, appended to by the process itself
//	p/<id>/pid,status    records (package wire)
//
// The host makes p and p/<id>, owned by the sandbox's root, and writes stdin; the stem makes
// the rest, and removes p/<id> when told to forget it.
//
// Invariants:
//   - Nothing in the directory is trusted. Each access resolves its path anew below the
//     directory's descriptor, following no link and leaving no mount; only regular files are
//     read, never more than asked for; records and replies are parsed strictly. What breaks
//     these rules is an Error with the code Tampered or Protocol. What is well formed may
//     still be a lie: an Exit is the sandbox's word.
//   - A connection lasts for one request. Nothing is connected while Wait and Follow wait:
//     they are woken by inotify through a Watcher, which any number of clients share, since
//     the kernel allows few of them.
package stem
