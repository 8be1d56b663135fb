// Package e2e tests the whole daemon: a process of its own on a state directory
// of its own, real containers, and the API client as the only way in.
//
// Vocabulary. The agent is the program of package e2e/agent: it changes and lists
// trees, and plays processes that are hard to checkpoint. It runs inside
// sandboxes, and on the host on an oracle: a plain directory to which the same
// operations are done. A listing is everything that matters of a tree.
//
// The test binary serves as cairnd when it is started with CAIRND_E2E=serve, so
// that what is tested is always what was compiled.
package e2e
