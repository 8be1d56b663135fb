package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"

	"cairn/daemon/network"
	"cairn/daemon/runtime"
)

// openNetwork prepares the network of sandboxes with "egress". A host that lacks
// what it takes still runs sandboxes without a network, unless some with one are
// to be kept warm.
func (d *Daemon) openNetwork() (runtime.Egress, error) {
	c := d.cfg.Network
	o := network.Options{Dir: filepath.Join(d.cfg.StateDir, "network"), Plugins: []string{c.Plugins}, Bridge: c.Bridge, Logger: d.log}
	if o.Bridge == "" {
		o.Bridge = "cairn-" + instance(d.cfg.StateDir)
	}
	if c.Subnet != "" {
		o.Subnet = netip.MustParsePrefix(c.Subnet) // config.Check has parsed it
	}
	for _, p := range c.Deny {
		o.Denied = append(o.Denied, netip.MustParsePrefix(p))
	}
	for _, a := range c.DNS {
		o.DNS = append(o.DNS, netip.MustParseAddr(a))
	}
	e, err := network.New(o)
	if err != nil {
		if d.cfg.Warm.Egress > 0 {
			return nil, fmt.Errorf("warm.egress asks for sandboxes with a network: %w", err)
		}
		d.log.Warn("sandboxes can have no network here", "err", err)
		return nil, nil
	}
	d.egress = e
	d.onClose("network", func(ctx context.Context) error { return e.Remove(ctx) })
	return e, nil
}

func (d *Daemon) resolvConf() string {
	if d.egress == nil {
		return ""
	}
	return d.egress.ResolvConf()
}
