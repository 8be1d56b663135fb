package sandbox

import (
	"context"
	"maps"
	"slices"
)

// Create makes a sandbox from an image and starts its command, if it has one.
// Errors: CodeInvalid, CodeNotFound (image), CodeConflict (name), CodeExhausted,
// CodeCommandNotFound; then nothing is left of it.
func (s *Service) Create(ctx context.Context, r CreateRequest) (Sandbox, error) {
	if err := checkLabels(r.Labels); err != nil {
		return Sandbox{}, err
	}
	cfg := r.Config
	cfg.Mounts = slices.Clone(cfg.Mounts)
	if err := s.checkConfig(&cfg); err != nil {
		return Sandbox{}, err
	}
	sb := Sandbox{Name: r.Name, Config: cfg, Labels: maps.Clone(r.Labels)}
	var img Image
	unlock, err := s.record(ctx, &sb, func(tx Tx) (err error) {
		img, err = tx.Image(r.Image)
		if CodeOf(err) == CodeNotFound {
			return &Error{Code: CodeNotFound, Field: "image", Message: "there is no image " + quote(r.Image) + "; pull or import it first"}
		}
		sb.ImageID, sb.ImageName, sb.Below = img.ID, img.Name, img.Layers
		return err
	})
	if err != nil {
		return Sandbox{}, err
	}
	defer unlock()
	return s.launch(ctx, sb, img.Layers, len(img.Layers), nil)
}

// record stores a new sandbox in StateCreating, with its id, project and name:
// from then on it is listed, and its name is taken. fill completes it. It is
// locked until unlock is called.
func (s *Service) record(ctx context.Context, sb *Sandbox, fill func(Tx) error) (unlock func(), err error) {
	if sb.Name != "" {
		if err := checkName("name", sb.Name); err != nil {
			return nil, err
		}
	}
	now := s.o.Now()
	sb.ID = s.o.NewID("sbx")
	if sb.Name == "" {
		sb.Name = sb.ID
	}
	sb.State, sb.Generation, sb.CreatedAt, sb.UpdatedAt = StateCreating, 1, now, now
	sb.Hostname = hostname(sb.Name)
	if unlock, err = s.lock(ctx, sb.ID, "create"); err != nil {
		return nil, err
	}
	err = s.update(ctx, func(tx Tx) error {
		if err := fill(tx); err != nil {
			return err
		}
		if s.o.MaxSandboxes > 0 {
			n, err := tx.CountSandboxes()
			if err != nil {
				return err
			}
			if n >= s.o.MaxSandboxes {
				return Errorf(CodeExhausted, "there are %d sandboxes and the configuration allows no more", n)
			}
		}
		var err error
		if sb.Project, err = tx.NextProject(); err != nil {
			return err
		}
		return tx.PutSandbox(*sb)
	})
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// launch brings a recorded, locked sandbox to life on the layers below, with the
// processes of a checkpoint if one is given. On an error the record is removed again.
func (s *Service) launch(ctx context.Context, sb Sandbox, below []string, imageLayers int, processes *Checkpoint) (Sandbox, error) {
	var u undo
	defer u.run(ctx)
	u.add(func(ctx context.Context) {
		if err := s.update(ctx, func(tx Tx) error { return tx.DeleteSandbox(sb.ID) }); err != nil {
			s.log.Error("cannot remove the record of a sandbox that did not start; the next start of the daemon does", "sandbox", sb.ID, "err", err)
		}
		s.requestSweep()
	})
	if err := s.reach("create.recorded"); err != nil {
		return Sandbox{}, err
	}
	a, err := s.freshUpper(ctx, sb, below, imageLayers)
	if err != nil {
		return Sandbox{}, err
	}
	defer a.unpin()
	if err := s.reach("create.layers"); err != nil {
		return Sandbox{}, err
	}
	c, err := s.start(ctx, &sb, a, processes, "create")
	if err != nil {
		return Sandbox{}, err
	}
	u.add(func(ctx context.Context) {
		s.drop(sb.ID)
		if err := s.o.Containers.Destroy(ctx, c.Name()); err != nil {
			s.log.Error("cannot destroy a container; the next start of the daemon does", "container", c.Name(), "err", err)
		}
	})
	var rows []Process
	if processes != nil {
		rows = revived(*processes, sb.ID)
	}
	err = s.update(ctx, func(tx Tx) error {
		if err := s.write(tx, "", commit{Sandbox: sb, Processes: rows}); err != nil {
			return err
		}
		return s.emit(tx, "sandbox.created", sb.ID, sb.ID, map[string]any{"name": sb.Name, "image": sb.ImageID, "forked_from": sb.ForkedFrom})
	})
	if err != nil {
		return Sandbox{}, err
	}
	s.adopt(sb, c)
	s.attendRevived(sb.ID, c, rows)
	if processes != nil {
		u.release()
		return sb, nil
	}
	if err := s.startMain(ctx, sb, c); err != nil {
		return Sandbox{}, err
	}
	u.release()
	return sb, nil
}

func quote(s string) string { return `"` + s[:min(len(s), 200)] + `"` }
