package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containernetworking/cni/libcni"
	types "github.com/containernetworking/cni/pkg/types/100"
)

// Version of the CNI specification that is spoken; plugins since 2021 know it.
const cniVersion = "1.0.0"

// ifName is the interface's name inside.
const ifName = "eth0"

// Egress is an egress network. Its methods may be called from several goroutines.
type Egress struct {
	o    Options
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList

	ready sync.Mutex
	ruled bool // the rules are in place
}

// New checks the options and what the host has. The host is changed when the
// first sandbox is attached.
func New(o Options) (*Egress, error) {
	if err := o.complete(); err != nil {
		return nil, fmt.Errorf("egress network: %w", err)
	}
	conf, err := json.Marshal(map[string]any{
		"cniVersion": cniVersion,
		"name":       o.Bridge,
		"plugins": []any{map[string]any{
			"type":      "bridge",
			"bridge":    o.Bridge,
			"isGateway": true, // the bridge has the subnet's first address, and the host forwards
			"ipMasq":    false,
			"ipam": map[string]any{
				"type":    "host-local",
				"dataDir": filepath.Join(o.Dir, "addresses"),
				"ranges":  []any{[]any{map[string]any{"subnet": o.Subnet.String()}}},
				"routes":  []any{map[string]any{"dst": "0.0.0.0/0"}},
			},
		}},
	})
	if err != nil {
		return nil, err
	}
	list, err := libcni.NetworkConfFromBytes(conf)
	if err != nil {
		return nil, fmt.Errorf("egress network: %w", err)
	}
	return &Egress{o: o, cni: libcni.NewCNIConfigWithCacheDir(o.Plugins, filepath.Join(o.Dir, "cache"), nil), list: list}, nil
}

// Subnet is the network that sandboxes have their addresses in.
func (e *Egress) Subnet() string { return e.o.Subnet.String() }

// Attach gives the network namespace at path an interface with an address. The
// rules are in place before, and the port is isolated before it returns: attach
// before anything runs in there.
func (e *Egress) Attach(ctx context.Context, id, path string) (err error) {
	if err := e.rule(ctx); err != nil {
		return err
	}
	res, err := e.cni.AddNetworkList(ctx, e.list, &libcni.RuntimeConf{ContainerID: id, NetNS: path, IfName: ifName})
	if err != nil {
		return fmt.Errorf("attach %s: %w", id, errors.Join(err, e.Detach(context.WithoutCancel(ctx), id)))
	}
	if err := e.isolate(res); err != nil {
		return fmt.Errorf("attach %s: %w", id, errors.Join(err, e.Detach(context.WithoutCancel(ctx), id)))
	}
	return nil
}

// isolate makes the host end of the interface a port that reaches no other port.
func (e *Egress) isolate(res any) error {
	r, ok := res.(*types.Result)
	if !ok {
		return fmt.Errorf("the plugin's answer is a %T", res)
	}
	done := false
	for _, i := range r.Interfaces {
		if i.Sandbox != "" || i.Name == e.o.Bridge {
			continue
		}
		if err := isolatePort(i.Name); err != nil {
			return fmt.Errorf("isolate the port: %w", err)
		}
		done = true
	}
	if !done {
		return errors.New("the plugin named no host interface")
	}
	return nil
}

// rule puts the rules in place, once.
func (e *Egress) rule(ctx context.Context) error {
	e.ready.Lock()
	defer e.ready.Unlock()
	if e.ruled {
		return nil
	}
	if err := apply(ctx, e.o.rules()); err != nil {
		return fmt.Errorf("egress network: %w", err)
	}
	e.ruled = true
	return nil
}

// Detach gives back the address that id has. The interface goes with its
// namespace. nil when id has none.
func (e *Egress) Detach(ctx context.Context, id string) error {
	// Without a namespace the plugin frees the address and leaves interfaces alone.
	rt := &libcni.RuntimeConf{ContainerID: id, IfName: ifName}
	if err := e.cni.DelNetworkList(ctx, e.list, rt); err != nil {
		return fmt.Errorf("detach %s: %w", id, err)
	}
	return nil
}

// Attached lists the ids that have an address.
func (e *Egress) Attached() ([]string, error) {
	dir := filepath.Join(e.o.Dir, "addresses", e.o.Bridge)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, n := range entries {
		if strings.HasPrefix(n.Name(), "last_reserved_ip") || n.Name() == "lock" {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, n.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		id, _, _ := bytes.Cut(b, []byte("\n"))
		ids = append(ids, strings.TrimSpace(string(id)))
	}
	return ids, nil
}

// Sweep puts the rules in place anew where sandboxes are attached, and detaches those that
// keep does not want.
func (e *Egress) Sweep(ctx context.Context, keep func(id string) bool) error {
	ids, err := e.Attached()
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	var errs []error
	kept := false
	for _, id := range ids {
		if keep(id) {
			kept = true
			continue
		}
		e.o.Logger.Info("giving back an address that nobody has", "id", id)
		errs = append(errs, e.Detach(ctx, id))
	}
	if kept { // the configuration may have changed since
		errs = append(errs, e.rule(ctx))
	}
	return errors.Join(errs...)
}

// Remove takes the bridge and the rules away, if no sandbox is attached; else
// it does nothing. Attach puts them back.
func (e *Egress) Remove(ctx context.Context) error {
	ids, err := e.Attached()
	if err != nil || len(ids) > 0 {
		return err
	}
	e.ready.Lock()
	defer e.ready.Unlock()
	e.ruled = false
	if _, err := net.InterfaceByName(e.o.Bridge); err == nil {
		if err := deleteLink(e.o.Bridge); err != nil {
			return fmt.Errorf("remove bridge %s: %w", e.o.Bridge, err)
		}
	}
	table := "cairn_" + strings.ReplaceAll(e.o.Bridge, "-", "_")
	return apply(ctx, fmt.Sprintf("table inet %s\ndelete table inet %s\n", table, table))
}
