// Package client is the Go client of a Cairn daemon.
//
// [Client], with one method for each operation of the contract, is generated;
// [Dial] makes one for a daemon, and [Get], [Done], [Body] and [OpenStream] read its
// answers:
//
//	c, err := client.Dial(client.Options{Socket: "/run/cairn/cairn.sock"})
//	sb, err := client.Get[types.Sandbox](c.GetSandbox(ctx, "alice"))
//
// Whatever the daemon refuses is an [*Error] with the problem's code.
package client
