// Package supervise keeps a containerd of the daemon's own running.
//
// It is started with a configuration that puts everything it writes (metadata,
// state, sockets, those of the shims too) below one directory, so that several
// daemons run side by side, and with only the plugins that are used.
//
// Invariants:
//
//   - Sandboxes depend on neither process: they are children of their shims.
//     containerd may die, or be stopped, and be started again at any time.
//   - containerd outlives a daemon that is killed. The next daemon stops it
//     and starts its own, with its own binary and configuration; a start takes
//     some 50 ms and finds every shim again.
//   - Orderly shutdown of the daemon stops containerd, and no shim.
package supervise
