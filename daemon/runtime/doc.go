// Package runtime makes blank containers with containerd and runc, keeps a pool
// of them warm, and finds them again after a restart. It implements
// sandbox.Containers.
//
// Vocabulary. A blank container runs nothing but cairn-init, on a skeleton root;
// attaching a stack to it makes it a sandbox. A slot is a number that a container
// holds for its life: it gives the range of user ids, uid base + slot * 65536, and
// the directory. A record is what the slot's directory says of the container.
// The pool holds blank containers that are started and answer; acquiring one
// takes it out for good.
//
// On disk, below Options.Slots:
//
//	<slot>/container.json  the record; written before containerd hears the name
//	<slot>/acquired        there from the moment that the container was acquired
//	<slot>/io/             seen at /run/cairn inside, owned by root inside; hostile
//
// Invariants:
//
//   - Whatever exists of a container is found by its record: a daemon killed
//     anywhere leaves nothing that New does not take back or remove.
//   - A slot is given to another container only when nothing is left of the first.
//   - Names are never used again.
//   - Freezing, killing, limits and the news of a death need neither containerd nor
//     the shim: they use cgroup files and a descriptor of the process.
//   - What is in io is data of the sandbox: no path below it is resolved through
//     a symbolic link.
package runtime
