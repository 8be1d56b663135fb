// Package e2e tests the whole daemon: a process of its own on a state directory
// of its own, real containers, and the API client as the only way in.
//
// Vocabulary. The agent is the program in the directory agent: it changes and
// lists trees, and plays processes that are hard to checkpoint. It runs inside
// sandboxes, and on the host on an oracle: a plain directory to which the same
// operations are done. A listing is everything that matters of a tree.
//
// The daemon is built from this source when the tests start, with the race
// detector when they have it. Every test has a state directory of its own and
// fails for what is left of it on the host: mounts, processes, control groups,
// layers, slots.
package e2e
