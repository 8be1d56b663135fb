// Package overlay keeps layers of files on disk and puts stacks of them under
// running containers, which takes about a millisecond however many files
// there are. It is the mechanism of checkpoint, restore and fork of files; it
// knows nothing of sandboxes or checkpoints.
//
// # Vocabulary
//
//   - A layer is a directory in overlayfs's format: files, whiteouts (0:0
//     character devices) for what is deleted, and directories marked opaque
//     that hide what layers below have. Owners are those seen inside a
//     container, 0 to 65535, whatever range the container has outside.
//   - An upper is a layer that is written to. When it is not any more it may
//     be used as a layer among others: nothing has to be done for that.
//   - A stack is an upper over layers, named top first. The skeleton, a
//     directory with the mount points that every container has, is at the
//     bottom of all and not named.
//   - To attach a stack is to make it the root of a running container in
//     place of the one it has.
//   - A capture is a copy of an upper that stays attached, and is made while
//     it is in use.
//   - To seal a layer is to make it durable and put all that is in it on
//     record, in a manifest whose SHA-256 identifies it.
//
// FORMAT.md says what is on disk.
//
// # Attaching
//
// Attach makes an overlay that is mounted nowhere, enters the container's
// mount namespace, mounts the overlay over "/", moves every mount that is
// directly on the old root to the same place of the new one, and calls
// pivot_root, which also moves the root and working directory of every
// process that stood in the old root. Owners are shifted into the container's
// user namespace by an idmapped clone of the pool, through which overlayfs
// reaches the layers. An error at any step leaves the old root as it was.
//
// All of it happens on threads that end afterwards. A process that starts
// children with a parent death signal must therefore start them from a
// thread of their own: the signal is sent when the thread ends.
//
// # Capturing
//
// A capture copies the upper while processes write to it (StartCapture), and
// once they stand still goes through it again (Finish) and copies what is new
// or not known to be what it was: a system call for each entry that did not
// change. What is the same in the previous capture is linked after they run
// again (Commit).
//
// A copy made while processes run holds for as long as inode, change time,
// size and mode are those seen before the copy began, because whatever changes
// an entry gives it another change time then. That needs three things.
//
//   - The change time must be older than the beginning of the pass by more
//     than a tick of the clock that it is taken from. Otherwise the next
//     change could get the same. What changed later, or in the future, or
//     while the clock was set back, is left to Finish.
//   - Nobody may have a file open for writing, at one moment between the look
//     and the copy. The kernel changes the time before a write, and for a
//     shared mapping only at the first store to a page that is clean: a write
//     that is under way, or a store to a page that is dirty already, changes
//     content later and no time. Who opens the file after that moment has all
//     its stores and writes ahead, and the first of each changes the time.
//     Whether a file is open for writing is asked by taking a read lease, so
//     that no mapping or descriptor is missed, wherever it is. Such a file is
//     left to Finish.
//   - The file system must change the time at the first store to a page also
//     if the page was read before, and of what is renamed. Ext4, XFS and btrfs
//     do. On others files are always left to Finish, and none is taken to be
//     unchanged since the previous capture.
//
// With nothing running, a file that is open for writing is good for the next
// capture if its pages are clean: the next store faults.
//
// What runs may be hostile. Entries are reached from an open directory by one
// name, never through a symbolic link; nothing is opened but regular files and
// directories, without waiting; a pass copies only what was there before it
// began and goes into each directory once, so that it ends.
//
// # Invariants
//
//   - A layer other than an attached upper never changes. Callers see to it
//     that no process writes to an upper from the beginning of Attach on: by
//     freezing the container, and by asking Blockers whether what runs there
//     can do without its old root. Attach makes the old root read-only first,
//     which the kernel refuses while a file is open for writing (ErrBusy).
//   - An upper is attached to at most one container, and mounted by
//     MountStack only while it is attached to none. Overlayfs does not check
//     this with index=off; two mounts of an upper corrupt it.
//   - The old root outlives Attach in the Replaced that it returns. The last
//     reference to an overlay syncs the whole file system of the upper, so it
//     is dropped in the background.
//   - A layer appears in the pool by a rename, complete, and goes by a rename.
//   - Nothing in a layer is followed out of it: paths are resolved below an
//     open directory, one name at a time, without symbolic links.
//
// An upper that becomes a layer while the overlay it was the upper of still
// exists makes the kernel log "lowerdir is in-use as upperdir/workdir of
// another mount". With index=off that is a warning, and harmless as long as
// nobody writes through the older overlay, which is read-only then.
package overlay
