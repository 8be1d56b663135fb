package daemon

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"cairn/sandbox"
)

// collector gives the gauges that are read from the metadata at each scrape.
func (d *Daemon) collector() prometheus.Collector {
	return &gauges{
		d:           d,
		sandboxes:   prometheus.NewDesc("cairn_sandboxes", "Sandboxes by state.", []string{"state"}, nil),
		checkpoints: prometheus.NewDesc("cairn_checkpoints", "Checkpoints by durability.", []string{"durability"}, nil),
		memory:      prometheus.NewDesc("cairn_process_bytes", "Memory and state of processes in checkpoints, as stored, by form.", []string{"form"}, nil),
		layers:      prometheus.NewDesc("cairn_layers", "Layers in the pool.", nil, nil),
		containers:  prometheus.NewDesc("cairn_containers", "Containers, blank ones in the warm pool included.", nil, nil),
	}
}

type gauges struct {
	d                                          *Daemon
	sandboxes, checkpoints, layers, containers *prometheus.Desc
	memory                                     *prometheus.Desc
}

func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.sandboxes
	ch <- g.checkpoints
	ch <- g.memory
	ch <- g.layers
	ch <- g.containers
}

func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	states := map[sandbox.State]int{}
	durability := map[sandbox.Durability]int{}
	t, err := g.d.Service.Timeline(ctx)
	if err != nil {
		g.d.log.Error("cannot count for metrics", "err", err)
		return
	}
	for _, h := range t.Heads {
		states[h.State]++
	}
	memory := map[string]int{}
	for _, c := range t.Checkpoints {
		durability[c.Durability]++
		form := "plain"
		if c.Compressed {
			form = "compressed"
		}
		memory[form] += int(c.Sizes.ProcessBytes)
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	for s, n := range states {
		gauge(g.sandboxes, n, string(s))
	}
	for s, n := range durability {
		gauge(g.checkpoints, n, string(s))
	}
	for form, n := range memory {
		gauge(g.memory, n, form)
	}
	if ids, err := g.d.pool.List(); err == nil {
		gauge(g.layers, len(ids))
	}
	gauge(g.containers, g.d.containers.Count())
}
