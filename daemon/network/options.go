package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Options configure an egress network.
type Options struct {
	Dir     string         // where addresses in use are kept; absolute
	Plugins []string       // directories with CNI plugins; nil: the usual ones
	Bridge  string         // name of the bridge, at most 15 bytes; also of the rules
	Subnet  netip.Prefix   // IPv4; zero: one that the host has no route into, then kept
	Denied  []netip.Prefix // networks that sandboxes may not reach; nil: link-local ones
	DNS     []netip.Addr   // resolvers for sandboxes; nil: the host's, see ResolvConf
	Logger  *slog.Logger
}

// Pool of subnets that one is chosen from when none is given. A bridge takes
// 1024 ports: a /22.
const (
	subnetPool = "10.88.0.0/16"
	subnetBits = 22
)

// LinkLocal are the networks denied by default: on many hosts the metadata
// service, which gives out credentials, has such an address.
func LinkLocal() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("169.254.0.0/16")}
}

func (o *Options) complete() error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if !filepath.IsAbs(o.Dir) {
		return fmt.Errorf("directory %q must be absolute", o.Dir)
	}
	if o.Bridge == "" || len(o.Bridge) > 15 || strings.Trim(o.Bridge, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return fmt.Errorf("bridge %q: want at most 15 of a-z, 0-9 and -", o.Bridge)
	}
	if o.Plugins == nil {
		o.Plugins = []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}
	}
	for _, p := range []string{"bridge", "host-local"} {
		if !hasPlugin(o.Plugins, p) {
			return fmt.Errorf("no CNI plugin %q in %s (Debian: containernetworking-plugins)", p, strings.Join(o.Plugins, ", "))
		}
	}
	if _, err := exec.LookPath("nft"); err != nil {
		return fmt.Errorf("egress needs nftables: %w", err)
	}
	if o.Denied == nil {
		o.Denied = LinkLocal()
	}
	for _, p := range o.Denied {
		if !p.IsValid() {
			return errors.New("a denied network is not valid")
		}
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return err
	}
	if !o.Subnet.IsValid() {
		var err error
		if o.Subnet, err = chooseSubnet(o.Dir, o.Bridge); err != nil {
			return err
		}
	}
	o.Subnet = o.Subnet.Masked()
	if !o.Subnet.Addr().Is4() || o.Subnet.Bits() > 29 || o.Subnet.Bits() < 8 {
		return fmt.Errorf("subnet %s: want an IPv4 network from /8 to /29", o.Subnet)
	}
	return nil
}

func hasPlugin(dirs []string, name string) bool {
	for _, d := range dirs {
		if fi, err := os.Stat(filepath.Join(d, name)); err == nil && fi.Mode().Perm()&0o111 != 0 {
			return true
		}
	}
	return false
}

// chooseSubnet gives the subnet of this network: the one of last time, or the
// first of the pool that overlaps no route of another interface.
func chooseSubnet(dir, bridge string) (netip.Prefix, error) {
	path := filepath.Join(dir, "subnet")
	if b, err := os.ReadFile(path); err == nil {
		if p, err := netip.ParsePrefix(strings.TrimSpace(string(b))); err == nil {
			return p, nil
		}
	}
	routes, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("read the routes: %w", err)
	}
	used, err := parseRoutes(string(routes), bridge)
	if err != nil {
		return netip.Prefix{}, err
	}
	p, ok := freeSubnet(netip.MustParsePrefix(subnetPool), subnetBits, used)
	if !ok {
		return netip.Prefix{}, fmt.Errorf("no free subnet in %s: configure one", subnetPool)
	}
	return p, os.WriteFile(path, []byte(p.String()+"\n"), 0o600)
}

// parseRoutes reads the destinations in /proc/net/route, but for the default
// ones and those by the interface except.
func parseRoutes(table, except string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for i, line := range strings.Split(table, "\n") {
		f := strings.Fields(line)
		if i == 0 || len(f) < 8 || f[0] == except {
			continue
		}
		var dst, mask uint32
		if _, err := fmt.Sscanf(f[1]+" "+f[7], "%x %x", &dst, &mask); err != nil {
			return nil, fmt.Errorf("route %q: %w", line, err)
		}
		// The kernel prints network order as if it were a number of this machine.
		var a [4]byte
		binary.NativeEndian.PutUint32(a[:], dst)
		bits := 0
		for m := mask; m != 0; m &= m - 1 {
			bits++
		}
		if bits > 0 {
			out = append(out, netip.PrefixFrom(netip.AddrFrom4(a), bits).Masked())
		}
	}
	return out, nil
}

// freeSubnet is the first network of that size in pool that overlaps none of used.
func freeSubnet(pool netip.Prefix, bits int, used []netip.Prefix) (netip.Prefix, bool) {
	base := binary.BigEndian.Uint32(pool.Addr().AsSlice())
next:
	for i := range uint32(1) << (bits - pool.Bits()) {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], base+i<<(32-bits))
		p := netip.PrefixFrom(netip.AddrFrom4(a), bits)
		for _, u := range used {
			if u.Overlaps(p) {
				continue next
			}
		}
		return p, true
	}
	return netip.Prefix{}, false
}
