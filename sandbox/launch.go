package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"path"
	"slices"
	"strings"
)

// attachment is a sandbox's stack made ready, and what to record once it is the
// container's root.
type attachment struct {
	upper    string
	base     []string
	identity string
	below    []string
	unpin    func()
}

// apply writes the attachment into the record of the sandbox.
func (a attachment) apply(sb *Sandbox) {
	sb.Upper, sb.Base, sb.Identity, sb.Below, sb.Captured = a.upper, a.base, a.identity, a.below, ""
}

// freshUpper makes a new upper and identity layer for a sandbox that is to stand
// on the layers below. Both stay pinned until unpin.
func (s *Service) freshUpper(ctx context.Context, sb Sandbox, below []string, imageLayers int) (attachment, error) {
	a := attachment{upper: s.o.NewID("l"), identity: s.o.NewID("l"), below: below}
	a.unpin = s.Pin(a.upper, a.identity)
	err := s.writeIdentity(ctx, sb, a.identity, below, below[:len(below)-imageLayers], nil)
	if err == nil {
		a.base = slices.Concat([]string{a.identity}, below)
		err = s.o.Layers.CreateUpper(ctx, a.upper, sb.Project, sb.Config.Resources.DiskBytes)
	}
	if err != nil {
		a.unpin()
		return attachment{}, err
	}
	return a, nil
}

// writeIdentity makes the layer with what is a sandbox's own and not its
// checkpoints': host name, machine id, name resolution, mount points. A file
// that the agent has written itself is left to it: any of these files in a layer
// of changed, and the host name and machine id in a layer of own (layers written
// under this same identity).
func (s *Service) writeIdentity(ctx context.Context, sb Sandbox, id string, below, changed, own []string) error {
	sum := sha256.Sum256([]byte(sb.ID))
	files := map[string]string{
		"etc/hostname":   sb.Hostname + "\n",
		"etc/machine-id": hex.EncodeToString(sum[:16]) + "\n",
		"etc/hosts":      "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t" + sb.Hostname + "\n",
	}
	if sb.Config.Network == NetworkEgress {
		files["etc/resolv.conf"] = s.o.ResolvConf()
	}
	for name := range files {
		writers := changed
		if name == "etc/hostname" || name == "etc/machine-id" {
			writers = own
		}
		if len(writers) == 0 {
			continue
		}
		has, err := s.o.Layers.Has(ctx, writers, name)
		if err != nil {
			return err
		}
		if has {
			delete(files, name)
		}
	}
	var dirs []string
	for _, m := range sb.Config.Mounts {
		dirs = append(dirs, strings.TrimPrefix(m.Target, "/"))
	}
	return s.o.Layers.WriteIdentity(ctx, id, below, files, dirs)
}

// start gives a sandbox a container with the attachment's stack as its root, and
// its limits, and the processes of a checkpoint if one is given. On an error nothing is
// left of it. The sandbox record is filled in but not yet stored.
func (s *Service) start(ctx context.Context, sb *Sandbox, a attachment, processes *Checkpoint, points string) (Container, error) {
	c, err := s.startOnce(ctx, sb, a, processes, points)
	// Processes must have the pids that they had. One that is taken in this container,
	// for a moment, need not be in the next.
	if processes != nil && CodeOf(err) == CodeInternal && ctx.Err() == nil {
		s.log.WarnContext(ctx, "processes could not be restored; trying another container", "checkpoint", processes.ID, "err", err)
		return s.startOnce(ctx, sb, a, processes, points)
	}
	return c, err
}

func (s *Service) startOnce(ctx context.Context, sb *Sandbox, a attachment, processes *Checkpoint, points string) (Container, error) {
	var u undo
	defer u.run(ctx)
	c, err := s.acquire(ctx, sb.Config.Network, processes)
	if err != nil {
		return nil, err
	}
	u.add(func(ctx context.Context) {
		if err := s.o.Containers.Destroy(ctx, c.Name()); err != nil {
			s.log.Error("cannot destroy a container; the next start of the daemon does", "container", c.Name(), "err", err)
		}
	})
	if err := s.reach(points + ".acquired"); err != nil {
		return nil, err
	}
	target := Target{PID: c.PID(), IDBase: c.IDBase(), Hostname: sb.Hostname, Mounts: sb.Config.Mounts}
	p, err := s.o.Layers.Prepare(ctx, target, Stack{Upper: a.upper, Layers: a.base})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if err := c.Limit(ctx, sb.Config.Resources); err != nil {
		return nil, err
	}
	if err := s.o.Layers.Account(c.IODir(), sb.Project); err != nil {
		return nil, err
	}
	if err := c.SetGeneration(sb.Generation); err != nil {
		return nil, err
	}
	attach := func(ctx context.Context) error {
		old, err := p.Attach(ctx)
		if err != nil {
			return err
		}
		return old.Close()
	}
	if processes != nil {
		err = s.o.Dumps.Restore(ctx, c, dumpedProcesses(*processes, attach))
	} else {
		err = attach(ctx)
	}
	if err != nil {
		return nil, err
	}
	if err := s.reach(points + ".attached"); err != nil {
		return nil, err
	}
	if err := c.Guest().Ready(ctx); err != nil {
		return nil, err
	}
	a.apply(sb)
	sb.Asleep, sb.Revived = "", processes != nil
	sb.Container, sb.State, sb.Reason, sb.UpdatedAt = c.Name(), StateRunning, "", s.o.Now()
	u.release()
	return c, nil
}

// acquire gets a container in which the processes of a checkpoint can run, if one is given.
func (s *Service) acquire(ctx context.Context, n Network, processes *Checkpoint) (Container, error) {
	if processes == nil {
		c, _, err := s.o.Containers.Acquire(ctx, n)
		return c, err
	}
	if err := s.o.Dumps.Check(ctx, processes.Images, processes.ImagesDigest); err != nil {
		return nil, err
	}
	return s.o.Containers.AcquireLike(ctx, n, processes.Program)
}

// adopt takes a container into memory and watches it.
func (s *Service) adopt(sb Sandbox, c Container) {
	l := &liveSandbox{container: c, processes: map[string]*liveProcess{}}
	s.mu.Lock()
	s.live[sb.ID] = l
	s.mu.Unlock()
	s.goDo(func(ctx context.Context) { s.watch(ctx, sb.ID, c) })
}

// drop forgets the container of a sandbox.
func (s *Service) drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, id)
}

// hostname makes a host name of a sandbox's name.
func hostname(name string) string {
	h := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, path.Base(name))
	return strings.Trim(h[:min(len(h), 63)], "-")
}
