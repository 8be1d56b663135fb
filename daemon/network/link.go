package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// deleteLink deletes a network interface, rtnetlink(7).
func deleteLink(name string) error {
	return link(name, unix.RTM_DELLINK, unix.AF_UNSPEC, nil)
}

// isolatePort makes a port of a bridge one that exchanges frames with no other
// isolated port.
func isolatePort(name string) error {
	const brportIsolated = 33 // IFLA_BRPORT_ISOLATED
	attr := attribute(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, attribute(brportIsolated, []byte{1}))
	return link(name, unix.RTM_SETLINK, unix.AF_BRIDGE, attr)
}

// attribute is one netlink attribute, padded.
func attribute(kind uint16, value []byte) []byte {
	b := make([]byte, unix.SizeofNlAttr, unix.SizeofNlAttr+len(value)+3)
	binary.NativeEndian.PutUint16(b[0:], uint16(unix.SizeofNlAttr+len(value)))
	binary.NativeEndian.PutUint16(b[2:], kind)
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// link sends one request about an interface, and waits for the answer.
func link(name string, kind uint16, family byte, attrs []byte) error {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	const head = unix.SizeofNlMsghdr + unix.SizeofIfInfomsg
	msg := make([]byte, head, head+len(attrs))
	msg = append(msg, attrs...)
	ne := binary.NativeEndian
	ne.PutUint32(msg[0:], uint32(len(msg)))
	ne.PutUint16(msg[4:], kind)
	ne.PutUint16(msg[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	ne.PutUint32(msg[8:], 1)
	msg[unix.SizeofNlMsghdr] = family
	ne.PutUint32(msg[unix.SizeofNlMsghdr+4:], uint32(i.Index))
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 || ne.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errors.New("unexpected answer of the kernel")
	}
	if e := int32(ne.Uint32(answer[unix.SizeofNlMsghdr:])); e != 0 {
		return fmt.Errorf("interface %s: %w", name, unix.Errno(-e))
	}
	return nil
}

// hostAddresses are the addresses of the host's interfaces.
func hostAddresses() map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return out // as good as none known: a resolver that does not answer is skipped by the next one
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				out[ip.Unmap()] = true
			}
		}
	}
	return out
}
