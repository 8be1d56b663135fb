// Package demo shows on a real project what Cairn is for, and proves it.
//
// It runs a daemon of its own in a temporary directory, lets an "agent" work in a
// sandbox on a git repository, ruin it, and get it back; then it forks the sandbox
// three ways, lets each fork try another fix for a bug, and keeps the one whose
// tests pass. Every operation is timed beside containerd's own way of doing the
// same thing in the same run (package baseline). What is claimed is checked from
// outside: files are read through the API and hashed here. Nothing of it stays on
// the machine.
package demo
