package sandbox

import (
	"context"
	"encoding/json"
	"io"
)

// pending is the journal's data of an operation that attaches another stack. The
// attach is the point of no return: when Upper is what the sandbox stands on,
// Commit must be recorded; when it is not, nothing has happened.
type pending struct {
	Upper  string
	Commit commit
}

// commit is everything that an attach changes in the metadata.
type commit struct {
	Sandbox    Sandbox
	Checkpoint *Checkpoint // nil: none
	Event      string      // about the sandbox; "" for none
	Data       map[string]any
	Processes  []Process // rows to be written
}

// journal records an operation before it begins to change anything.
func (s *Service) journal(ctx context.Context, kind, sandboxID string, layers []string, data pending) (Operation, error) {
	raw, err := json.Marshal(data)
	if err != nil {
		return Operation{}, err
	}
	op := Operation{ID: s.o.NewID("op"), Kind: kind, SandboxID: sandboxID, Layers: layers, Data: raw, StartedAt: s.o.Now()}
	return op, s.o.Store.Update(ctx, func(tx Tx) error { return tx.PutOperation(op) })
}

// unjournal closes the entry of an operation that changed nothing.
func (s *Service) unjournal(ctx context.Context, op Operation) {
	if err := s.o.Store.Update(ctx, func(tx Tx) error { return tx.DeleteOperation(op.ID) }); err != nil {
		s.log.Error("cannot close a journal entry; the next start of the daemon does", "operation", op.ID, "err", err)
	}
}

// finish records what an operation did and closes its entry. When that fails the
// sandbox already stands on the new stack: it is kept as open, and the next
// operation on this sandbox, or the next start, records it first.
func (s *Service) finish(ctx context.Context, op Operation, c commit) error {
	ctx, cancel := outlive(ctx)
	defer cancel()
	err := s.update(ctx, func(tx Tx) error { return s.write(tx, op.ID, c) })
	if err != nil {
		s.mu.Lock()
		s.open[op.SandboxID] = op
		s.mu.Unlock()
	}
	return err
}

// settle records an operation that finish could not record.
func (s *Service) settle(ctx context.Context, sandboxID string) error {
	s.mu.Lock()
	op, ok := s.open[sandboxID]
	s.mu.Unlock()
	if !ok {
		return nil
	}
	var p pending
	if err := json.Unmarshal(op.Data, &p); err != nil {
		return err
	}
	if err := s.update(ctx, func(tx Tx) error { return s.write(tx, op.ID, p.Commit) }); err != nil {
		return Wrap(err, CodeUnavailable, "the outcome of the last %s is not recorded yet; try again", op.Kind)
	}
	s.mu.Lock()
	delete(s.open, sandboxID)
	s.mu.Unlock()
	return nil
}

// write puts a commit into the transaction and closes the journal entry, if any.
func (s *Service) write(tx Tx, opID string, c commit) error {
	if cp := c.Checkpoint; cp != nil {
		if cp.Layer != "" {
			if err := tx.PutLayer(Layer{ID: cp.Layer, CreatedAt: cp.CreatedAt}); err != nil {
				return err
			}
		}
		if cp.Images != "" {
			if err := tx.PutLayer(Layer{ID: cp.Images, CreatedAt: cp.CreatedAt}); err != nil {
				return err
			}
		}
		if err := tx.PutCheckpoint(*cp); err != nil {
			return err
		}
		if err := s.emit(tx, "checkpoint.created", cp.SandboxID, cp.ID, map[string]any{"name": cp.Name, "kind": string(cp.Kind), "parent": cp.Parent, "processes": cp.Processes}); err != nil {
			return err
		}
	}
	if err := tx.PutSandbox(c.Sandbox); err != nil {
		return err
	}
	for _, p := range c.Processes {
		if err := tx.PutProcess(p); err != nil {
			return err
		}
	}
	if c.Event != "" {
		if err := s.emit(tx, c.Event, c.Sandbox.ID, c.Sandbox.ID, c.Data); err != nil {
			return err
		}
	}
	if opID == "" {
		return nil
	}
	return tx.DeleteOperation(opID)
}

// remove takes away a layer that was made for nothing; the sweep does where this can't.
func (s *Service) remove(ctx context.Context, layer string) {
	if err := s.o.Layers.Remove(ctx, layer); err != nil {
		s.log.Warn("cannot remove a layer; the sweep does", "layer", layer, "err", err)
	}
}

// closeLater closes in the background what may wait for the disk.
func (s *Service) closeLater(closers ...io.Closer) {
	go func() {
		for _, c := range closers {
			if err := c.Close(); err != nil {
				s.log.Warn("cannot release a mount", "err", err)
			}
		}
	}()
}
