// Package wire is the language spoken between the daemon and a sandbox's stem: frames and
// messages on /run/cairn/stem.sock, and the small text records kept in /run/cairn/p/<id>/.
//
// Frame: a length (4 bytes, big endian, of what follows), a version (1 byte), a kind
// (1 byte), a payload. The payload's fields are written in order without tags: numbers as
// unsigned varints, strings as a varint length and bytes, lists as a varint count and items.
// A connection carries any number of requests, each answered by one reply, in order.
//
// Records: "pid" is written when a process has started, "status" when it has ended. Both
// are lines of a key, a space and a value, in a fixed order, the first line naming the
// format. They appear whole, by rename, and are never changed afterwards.
//
// Both sides distrust what they read: every length and count is bounded before memory is
// taken, trailing bytes are an error, numbers have ranges, and no text is passed on unchecked.
//
// The package is linked into the programs that run inside the sandbox, whose memory is
// counted in every sandbox. It therefore imports no reflection, formatting or networking.
package wire
