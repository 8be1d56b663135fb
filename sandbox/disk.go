package sandbox

import (
	"context"
	"time"
)

// diskUsed is what the layers that a sandbox wrote occupy: its upper, its output
// files where they are accounted, and the checkpoints taken in it that are kept.
func (s *Service) diskUsed(ctx context.Context, sb Sandbox) (int64, error) {
	used, known, err := s.o.Layers.ProjectUsage(sb.Project)
	if err != nil || known {
		return used, err
	}
	if used, _, err = s.o.Layers.Usage(ctx, sb.Upper); err != nil {
		return 0, err
	}
	var own []string
	err = s.o.Store.View(ctx, func(tx Tx) error {
		for page := (Page{Limit: 500}); ; {
			l, err := tx.Checkpoints(CheckpointFilter{SandboxID: sb.ID}, page)
			if err != nil {
				return err
			}
			for _, cp := range l.Items {
				if cp.Layer != "" && cp.Method == MethodSwitch {
					own = append(own, cp.Layer)
				}
			}
			if page.Cursor = l.NextCursor; page.Cursor == "" {
				return nil
			}
		}
	})
	if err != nil {
		return 0, err
	}
	for _, id := range own {
		bytes, _, err := s.layerSize(ctx, id)
		if err != nil {
			return 0, err
		}
		used += bytes
	}
	return used, nil
}

// diskLoop holds the disk limits where the pool's file system cannot: it counts,
// and pauses a sandbox that has written more than it may. Counting costs time in
// the number of files, so a sandbox is counted again only after a pause that is
// a multiple of what the last count took.
func (s *Service) diskLoop(ctx context.Context) {
	const (
		period = 250 * time.Millisecond
		ease   = 20 // pause between counts, as a multiple of one
	)
	if _, known, err := s.o.Layers.ProjectUsage(1); err == nil && known {
		return // the kernel holds them
	}
	next := map[string]time.Time{}
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		var all []Sandbox
		err := s.o.Store.View(ctx, func(tx Tx) error {
			return eachSandbox(tx, SandboxFilter{State: StateRunning}, func(sb Sandbox) error { all = append(all, sb); return nil })
		})
		if err != nil && ctx.Err() == nil {
			s.log.Error("cannot list sandboxes for their disk limits", "err", err)
		}
		due := map[string]time.Time{}
		for _, sb := range all {
			if sb.Config.Resources.DiskBytes == 0 {
				continue
			}
			begin := time.Now()
			if begin.Before(next[sb.ID]) {
				due[sb.ID] = next[sb.ID]
				continue
			}
			if err := s.holdDisk(ctx, sb); err != nil && ctx.Err() == nil {
				s.log.Error("cannot check a disk limit", "sandbox", sb.ID, "err", err)
			}
			due[sb.ID] = time.Now().Add(ease * time.Since(begin))
		}
		next = due
	}
}

func (s *Service) holdDisk(ctx context.Context, sb Sandbox) error {
	used, err := s.diskUsed(ctx, sb)
	if err != nil || used <= sb.Config.Resources.DiskBytes {
		return err
	}
	sb, unlock, err := s.lockSandbox(ctx, sb.ID, "disk limit")
	if err != nil {
		return err
	}
	defer unlock()
	if sb.State != StateRunning {
		return nil
	}
	_, err = s.pause(ctx, sb, "disk limit reached: delete files or checkpoints, then resume")
	return err
}

// eachSandbox calls fn for every sandbox that the filter lets through.
func eachSandbox(tx Tx, f SandboxFilter, fn func(Sandbox) error) error {
	for page := (Page{Limit: 500}); ; {
		list, err := tx.Sandboxes(f, page)
		if err != nil {
			return err
		}
		for _, sb := range list.Items {
			if err := fn(sb); err != nil {
				return err
			}
		}
		if page.Cursor = list.NextCursor; page.Cursor == "" {
			return nil
		}
	}
}
