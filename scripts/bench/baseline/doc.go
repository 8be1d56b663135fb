// Package baseline does with containerd's own calls what Cairn does its own way,
// so that both can be timed in one run.
//
// It starts a containerd of its own, from the same binaries and with the defaults
// of the project (overlayfs snapshotter, runc, one shim per container). A root file
// system is unpacked into a committed snapshot; a container is a snapshot prepared
// from a committed one, with `sleep infinity` as PID 1; keeping what a container
// wrote means to end it and to commit its snapshot, since a snapshot that is
// written to cannot be one that others start from. Containers have no user
// namespace, no seccomp filter and no network, which are all to containerd's
// advantage.
package baseline
