// Package network connects sandboxes to the outside through NAT, and to nothing
// else, with CNI plugins for the interfaces and nftables for what may pass.
//
// Vocabulary. An egress network is a bridge of the host with its own subnet; each
// sandbox on it has one interface, whose host end is a port of the bridge. An id
// names a sandbox's place on it.
//
// What holds for a sandbox on it, whatever runs inside as whatever user:
//
//   - It reaches what the host can route to, except the denied networks.
//   - It does not reach another sandbox: ports are isolated on the bridge, and
//     what comes back to the bridge by routing is dropped.
//   - It does not reach the host on any of its addresses: everything that comes in by
//     the bridge for the host itself is dropped, whatever interface has the address.
//   - It cannot use another address than its own: what comes with another subnet's is dropped,
//     it has neither raw sockets nor the right to change its interface, and no IPv6.
//   - Nobody outside can open a connection to it.
//
// Invariants: all state on disk is below Options.Dir; interfaces, tables and
// files are named after the network, so that several daemons run side by side;
// Sweep gives up whatever a daemon that was killed left.
package network
