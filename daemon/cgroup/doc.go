// Package cgroup freezes, kills, limits and measures the control group of one
// container, without a round trip to its runtime.
//
// Vocabulary. A hierarchy is what the host mounts: version 1, with one tree per
// controller, or version 2, with one tree. A group is one container's place in
// it, named by the same path in every tree.
//
// Freezing is on the path of every checkpoint, so a Group keeps the few file
// descriptors that it needs for it. Everything else opens its file when called.
//
// Invariants:
//
//   - After Freeze returns nil, no thread of the group runs until Thaw.
//   - After Freeze returns an error, the group is thawed.
//   - Process ids are the host's.
package cgroup
