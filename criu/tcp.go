package criu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Connections of processes that were ended linger in the kernel for a minute, and keep the
// ports from who did not ask to use them again (SO_REUSEADDR). A restore in the same
// container would not get its ports back: so they are taken away.

// Constants of <linux/sock_diag.h> and <linux/inet_diag.h>.
const (
	diagByFamily, diagDestroy = 20, 21

	diagRequestLen = 56 // struct inet_diag_req_v2
	diagIDAt       = 4  // of the struct inet_diag_sockid in a struct inet_diag_msg
	diagIDLen      = 48
	netlinkHeader  = 16
)

// closeConnections ends all TCP sockets in the network namespace of a container, in which
// no process but PID 1 runs. Where the kernel can't (CONFIG_INET_DIAG_DESTROY), they stay.
func closeConnections(pid int) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return &Error{Code: CodeGone, PID: 1, Message: "the sandbox has ended", Err: err}
	}
	defer ns.Close()
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine.
		runtime.LockOSThread()
		err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
			if err == nil {
				err = destroyTCP(family)
			}
		}
		done <- err
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("close TCP connections: %w", err)
	}
	return nil
}

func destroyTCP(family byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	const everyState = ^uint32(0)
	if err := diagSend(fd, diagByFamily, unix.NLM_F_DUMP, family, everyState, nil); err != nil {
		return err
	}
	var ids [][]byte
	err = diagAnswers(fd, func(m []byte) {
		if len(m) >= diagIDAt+diagIDLen {
			ids = append(ids, append([]byte(nil), m[diagIDAt:diagIDAt+diagIDLen]...))
		}
	})
	if errors.Is(err, unix.ENOENT) {
		return nil // no inet_diag
	}
	for _, id := range ids {
		if err != nil {
			break
		}
		if err = diagSend(fd, diagDestroy, unix.NLM_F_ACK, family, everyState, id); err == nil {
			err = diagAnswers(fd, func([]byte) {})
		}
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil
		}
		if errors.Is(err, unix.ENOENT) {
			err = nil // it has ended by itself
		}
	}
	return err
}

func diagSend(fd int, kind, flags uint16, family byte, states uint32, id []byte) error {
	b := make([]byte, netlinkHeader+diagRequestLen)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], kind)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|flags)
	b[netlinkHeader], b[netlinkHeader+1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[netlinkHeader+4:], states)
	copy(b[netlinkHeader+8:], id)
	return unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// diagAnswers reads messages until the one that says that it was the last.
func diagAnswers(fd int, fn func(m []byte)) error {
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		for b := buf[:n]; len(b) >= netlinkHeader; {
			size := int(binary.NativeEndian.Uint32(b))
			if size < netlinkHeader || size > len(b) {
				return unix.EBADMSG
			}
			switch kind := binary.NativeEndian.Uint16(b[4:]); kind {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR:
				if code := int32(binary.NativeEndian.Uint32(b[netlinkHeader:])); code != 0 {
					return unix.Errno(-code)
				}
				return nil
			default:
				fn(b[netlinkHeader:size])
			}
			b = b[min((size+3)/4*4, len(b)):]
		}
	}
}
