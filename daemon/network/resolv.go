package network

import (
	"net/netip"
	"os"
	"strings"
)

// ResolvConf is the resolv.conf for sandboxes on this network: the configured
// resolvers, else those of the host that a sandbox can reach. It reaches no
// resolver that listens on the host itself. When none is left, public ones.
func (e *Egress) ResolvConf() string {
	dns := e.o.DNS
	for _, path := range []string{"/run/systemd/resolve/resolv.conf", "/etc/resolv.conf"} {
		if len(dns) > 0 {
			break
		}
		if b, err := os.ReadFile(path); err == nil {
			dns = e.reachable(nameservers(string(b)))
		}
	}
	if len(dns) == 0 {
		dns = publicDNS()
	}
	var b strings.Builder
	for _, a := range dns {
		b.WriteString("nameserver " + a.String() + "\n")
	}
	return b.String()
}

func publicDNS() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("1.1.1.1"), netip.MustParseAddr("8.8.8.8")}
}

// nameservers reads the resolvers of a resolv.conf(5), at most the three that count.
func nameservers(conf string) []netip.Addr {
	var out []netip.Addr
	for line := range strings.Lines(conf) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" || len(out) == 3 {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// reachable leaves out resolvers that the rules keep from sandboxes.
func (e *Egress) reachable(dns []netip.Addr) []netip.Addr {
	local := hostAddresses()
	var out []netip.Addr
next:
	for _, a := range dns {
		if !a.Is4() || a.IsLoopback() || local[a] {
			continue
		}
		for _, p := range e.o.Denied {
			if p.Contains(a) {
				continue next
			}
		}
		out = append(out, a)
	}
	return out
}
