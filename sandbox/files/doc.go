// Package files reads and changes files below one directory, on behalf of a
// caller outside of the sandbox to which the directory belongs.
//
// A [Root] stands for the root directory of a running sandbox (a descriptor of
// /proc/PID/root) or of a mounted checkpoint. Everything below it is hostile:
// symlinks, FIFOs, devices, odd names, directories that are swapped while an
// operation runs. The sandbox must neither lead an operation outside, nor make
// the daemon hang, nor fill its memory.
//
// Words:
//
//   - root: the directory that "/" means in every path given to this package.
//   - inside, outside: ids as the sandbox sees them (0..65535), and as the host
//     sees them (base..base+65535). The API speaks inside ids only.
//   - actor: the operating system thread that performs changes. It carries the
//     sandbox's ids as file system ids, because the layers are idmapped and the
//     kernel refuses (EOVERFLOW) to create a file for an id without a mapping.
//
// Invariants:
//
//   - Paths are resolved by the kernel with openat2 and RESOLVE_IN_ROOT; nothing
//     is decided from a path's text. What is opened once is used by descriptor.
//   - Operations stay on the root's own mount. Everything mounted below it
//     (/proc, /sys, /dev, /run/cairn) is refused with [ErrOutside]. Names are
//     checked before they are removed or replaced too: the kernel lets another
//     mount namespace remove a mount point, and that would take the mount away.
//   - Data is only ever read from and written to regular files.
//   - A file is replaced by rename, never written in place, and a failed write
//     leaves nothing behind.
//   - Memory does not grow with the size of files, directories or archives.
//
// A Root keeps descriptors of the file system open while an operation runs. The
// caller must not switch the sandbox to other layers in the meantime: a write
// would go on in a layer that has become immutable. Data that arrives slowly is
// collected with [Spool] before the sandbox is locked for the write.
package files
