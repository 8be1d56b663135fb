// Package sandbox is Cairn's domain: sandboxes, checkpoints, and what can be
// done with them. It knows no containerd, SQLite, HTTP or mount call; those are
// reached through the small interfaces in ports.go, which this package owns.
//
// Vocabulary. A sandbox is one agent's environment: a container whose root is an
// overlay stack. A layer is an immutable directory in overlayfs format. A stack
// is an ordered list of layers, top first. The upper is the layer that a running
// sandbox writes. A checkpoint is an immutable record: a stack and its metadata.
// The head of a sandbox is the checkpoint that its present work started from.
//
// Invariants:
//
//   - A layer that any checkpoint's stack names is never written.
//   - At most one operation that changes a sandbox runs at a time (the lock of
//     Service.lock); operations on different sandboxes run in parallel.
//   - Before an operation changes anything outside the database it has a journal
//     entry there; after a crash Reconcile finishes or undoes every entry.
//   - What a sandbox says is untrusted. Its own word decides nothing: whether it
//     is quiescent is read from the kernel while it is frozen.
package sandbox
