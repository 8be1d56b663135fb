// Package helper is the program cairn-criu: one process for each dump, restore or probe,
// which ends when that is done. It runs on the host, as root; CRIU, which it starts through
// go-criu, runs inside the sandbox and has no right there that the sandbox's root can't have.
//
// The program has three roles, told apart by its arguments: the helper itself (none), the
// one that go-criu starts in the place of CRIU and that enters the namespaces ("swrk"), and
// the one that probes in namespaces of its own ("probe").
//
// What CRIU writes was made while it looked at hostile processes. It is parsed here, in a
// process of its own, within bounds.
package helper
