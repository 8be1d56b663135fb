// Package daemon puts Cairn together: it opens the state directory, starts what
// the domain needs (store, pool of layers, containerd, containers, network,
// images), wires it behind the interfaces of package sandbox, and serves the API.
//
// Order. One daemon at a time has a state directory: the lock is taken first and
// given back last. Opening goes store, pool, containerd, containers, service,
// reconcile, listener; closing goes the other way. The API listens only once
// reconcile has ended: whoever can connect finds a consistent state.
package daemon
