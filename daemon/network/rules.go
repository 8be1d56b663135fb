package network

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
)

// priority puts the rules before those of others (0 is the usual one), so that
// what they drop is dropped whatever others accept.
const priority = -10

// rules is the nftables script that puts the network's table in place, in one
// transaction and in place of an older one.
func (o Options) rules() string {
	br, table := quote(o.Bridge), "cairn_"+strings.ReplaceAll(o.Bridge, "-", "_")
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s\ndelete table inet %s\ntable inet %s {\n", table, table, table)
	chain := func(name, hook string, rules ...string) {
		fmt.Fprintf(&b, "\tchain %s {\n\t\ttype %s\n", name, hook)
		for _, r := range rules {
			fmt.Fprintf(&b, "\t\t%s\n", r)
		}
		b.WriteString("\t}\n")
	}
	// To the host itself, on any of its addresses.
	chain("input", fmt.Sprintf("filter hook input priority %d; policy accept;", priority),
		"iifname "+br+" drop")
	out := []string{
		"iifname " + br + " ip saddr != " + o.Subnet.String() + " drop",
		"iifname " + br + " oifname " + br + " drop",
		"iifname " + br + " meta nfproto ipv6 drop",
	}
	for _, f := range []struct {
		word string
		v4   bool
	}{{"ip", true}, {"ip6", false}} {
		if nets := o.denied(f.v4); len(nets) > 0 {
			out = append(out, fmt.Sprintf("iifname %s %s daddr { %s } reject with icmpx type admin-prohibited", br, f.word, strings.Join(nets, ", ")))
		}
	}
	out = append(out,
		"oifname "+br+" ct state established,related accept",
		"oifname "+br+" drop")
	chain("forward", fmt.Sprintf("filter hook forward priority %d; policy accept;", priority), out...)
	chain("postrouting", "nat hook postrouting priority 100; policy accept;",
		"ip saddr "+o.Subnet.String()+" oifname != "+br+" masquerade")
	b.WriteString("}\n")
	return b.String()
}

// denied lists the denied networks of one family without overlaps, which a set
// cannot hold.
func (o Options) denied(v4 bool) []string {
	var nets []netip.Prefix
	for _, p := range o.Denied {
		if p = p.Masked(); p.Addr().Is4() == v4 {
			nets = append(nets, p)
		}
	}
	slices.SortFunc(nets, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	var kept []netip.Prefix
	for _, p := range nets {
		if !slices.ContainsFunc(kept, p.Overlaps) {
			kept = append(kept, p)
		}
	}
	out := make([]string, len(kept))
	for i, p := range kept {
		out[i] = p.String()
	}
	return out
}

func quote(s string) string { return `"` + s + `"` }

// apply runs an nftables script, all or nothing.
func apply(ctx context.Context, script string) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}
