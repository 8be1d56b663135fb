// Command bench measures Cairn on this machine, beside the same jobs done with
// containerd's own calls in the same run (package baseline). It prints tables and
// writes them as JSON; see its flags. It needs root, and what `make build images`
// makes.
//
// All times are wall-clock milliseconds as a client of the API sees them, but
// "freeze", which is how long the daemon says that the sandbox stood still.
package main
