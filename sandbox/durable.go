package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
)

// durableQueue makes checkpoints durable in the background, oldest first, and
// lets callers wait for one.
type durableQueue struct {
	s       *Service
	mu      sync.Mutex
	waiting []string
	jobs    map[string]*durableJob // by checkpoint id: queued or being done
	more    chan struct{}
	idle    chan struct{} // closed when nothing is queued or being done; nil otherwise
	layers  *keyLocks     // one sealer per layer
}

type durableJob struct {
	done chan struct{}
	err  error
}

func newDurableQueue(s *Service) *durableQueue {
	return &durableQueue{s: s, jobs: map[string]*durableJob{}, more: make(chan struct{}, 1), layers: newKeyLocks()}
}

// add queues a checkpoint that is not durable yet.
func (q *durableQueue) add(cp Checkpoint) {
	if cp.Durability == DurabilityCaptured {
		q.enqueue(cp.ID)
	}
}

func (q *durableQueue) enqueue(id string) *durableJob {
	q.mu.Lock()
	defer q.mu.Unlock()
	if j := q.jobs[id]; j != nil {
		return j
	}
	j := &durableJob{done: make(chan struct{})}
	q.jobs[id] = j
	q.waiting = append(q.waiting, id)
	q.poke()
	return j
}

func (q *durableQueue) poke() {
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// wait returns the checkpoint once it is durable.
func (q *durableQueue) wait(ctx context.Context, id string) (Checkpoint, error) {
	cp, err := q.s.getCheckpoint(ctx, id)
	if err != nil || cp.Durability == DurabilityDurable {
		return cp, err
	}
	j := q.enqueue(id)
	select {
	case <-j.done:
	case <-ctx.Done():
		return cp, Wrap(context.Cause(ctx), CodeTimeout, "checkpoint %s is captured, but was not durable in time", id)
	case <-q.s.background.Done():
		return cp, Wrap(errClosed, CodeUnavailable, "checkpoint %s is captured; the daemon stops before it is durable", id)
	}
	if j.err != nil {
		return cp, j.err
	}
	return q.s.getCheckpoint(ctx, id)
}

func (q *durableQueue) run(ctx context.Context) {
	for {
		q.mu.Lock()
		var id string
		if len(q.waiting) > 0 {
			id, q.waiting = q.waiting[0], q.waiting[1:]
		}
		left := len(q.waiting)
		q.mu.Unlock()
		if id == "" {
			select {
			case <-ctx.Done():
				return
			case <-q.more:
				continue
			}
		}
		if left > 0 {
			q.poke() // for another worker
		}
		q.finish(id, q.s.makeDurable(ctx, id))
		if ctx.Err() != nil {
			return
		}
	}
}

func (q *durableQueue) finish(id string, err error) {
	if err != nil && !errors.Is(err, context.Canceled) && CodeOf(err) != CodeNotFound {
		q.s.log.Error("cannot make a checkpoint durable", "checkpoint", id, "err", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.jobs[id]
	delete(q.jobs, id)
	j.err = err
	close(j.done)
	if len(q.jobs) == 0 && q.idle != nil {
		close(q.idle)
		q.idle = nil
	}
}

// drain returns when nothing is queued, or when ctx is done.
func (q *durableQueue) drain(ctx context.Context) error {
	q.mu.Lock()
	if len(q.jobs) == 0 {
		q.mu.Unlock()
		return nil
	}
	if q.idle == nil {
		q.idle = make(chan struct{})
	}
	idle := q.idle
	q.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// makeDurable seals every layer of a checkpoint that is not sealed, gives the
// checkpoint its digest, and makes the metadata survive the host.
func (s *Service) makeDurable(ctx context.Context, id string) error {
	cp, err := s.getCheckpoint(ctx, id)
	if err == nil {
		err = s.compactPages(ctx, cp) // before all of it is read and written to the disk
	}
	if err != nil {
		return err
	}
	for {
		cp, err := s.getCheckpoint(ctx, id)
		if err != nil {
			return err
		}
		if cp.Durability != DurabilityCaptured {
			return nil
		}
		ids := cp.Layers()
		defer s.Pin(ids...)()
		layers, err := s.recordedLayers(ctx, ids)
		if err != nil {
			return err
		}
		digests := make([]string, len(ids))
		var own Layer
		for i, l := range layers {
			if l.Digest == "" {
				if l, err = s.seal(ctx, ids[i]); err != nil {
					return err
				}
			}
			digests[i] = l.Digest
			if l.ID == cp.Layer {
				own = l
			}
		}
		if err := s.reach("durable.sealed"); err != nil {
			return err
		}
		digest := CheckpointDigest(digests)
		again := false
		err = s.update(ctx, func(tx Tx) error {
			now, err := tx.Checkpoint(id)
			if err != nil {
				return err
			}
			if again = !equalStacks(now.Layers(), ids); again {
				return nil // squashed meanwhile
			}
			now.Durability, now.Digest, now.LayerDigests, now.DurableAt = DurabilityDurable, digest, digests, s.o.Now()
			now.Sizes.LayerBytes, now.Sizes.LayerFiles = own.Bytes, own.Files
			if err := tx.PutCheckpoint(now); err != nil {
				return err
			}
			return s.emit(tx, "checkpoint.durable", now.SandboxID, now.ID, map[string]any{"digest": digest})
		})
		if err != nil {
			return err
		}
		if again {
			continue
		}
		if err := s.o.Store.Sync(ctx); err != nil {
			return err
		}
		if err := s.reach("durable.committed"); err != nil {
			return err
		}
		return s.squashIfDeep(ctx, id)
	}
}

// recordedLayers gives what is recorded of each; of one that is not, only the id.
func (s *Service) recordedLayers(ctx context.Context, ids []string) ([]Layer, error) {
	layers := make([]Layer, len(ids))
	err := s.o.Store.View(ctx, func(tx Tx) error {
		for i, id := range ids {
			l, err := tx.Layer(id)
			if err != nil && CodeOf(err) != CodeNotFound {
				return err
			}
			if err != nil {
				l = Layer{ID: id, CreatedAt: s.o.Now()}
			}
			layers[i] = l
		}
		return nil
	})
	return layers, err
}

// seal gives the layer its manifest and digest, once.
func (s *Service) seal(ctx context.Context, id string) (Layer, error) {
	unlock, err := s.durable.layers.lock(ctx, id, "seal", true)
	if err != nil {
		return Layer{}, err
	}
	defer unlock()
	layers, err := s.recordedLayers(ctx, []string{id})
	if err != nil {
		return Layer{}, err
	}
	l := layers[0]
	if l.Digest != "" {
		return l, nil
	}
	if l.Digest, l.Bytes, l.Files, err = s.o.Layers.Seal(ctx, id); err != nil {
		return Layer{}, err
	}
	return l, s.o.Store.Update(ctx, func(tx Tx) error { return tx.PutLayer(l) })
}

// CheckpointDigest is the digest of a checkpoint whose layers' manifests have
// the given digests, top first: the SHA-256 of the text "cairn checkpoint 1\n"
// followed by a line for each, bottom first.
func CheckpointDigest(layers []string) string {
	var b strings.Builder
	b.WriteString("cairn checkpoint 1\n")
	for i := len(layers) - 1; i >= 0; i-- {
		b.WriteString(layers[i])
		b.WriteByte('\n')
	}
	sum := sha256.Sum256([]byte(b.String()))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Verify reads every byte of a checkpoint and compares it with what was
// recorded. One that is only captured is made durable first. A damaged one is
// marked, refused by restore and fork from then on, and CodeCorrupt says what is
// wrong; one that verifies again loses the mark.
func (s *Service) Verify(ctx context.Context, id string) (Checkpoint, error) {
	cp, err := s.getCheckpoint(ctx, id)
	if err != nil {
		return Checkpoint{}, err
	}
	if cp.Durability == DurabilityLost {
		return cp, Errorf(CodeLost, "checkpoint %s was not durable yet when the host went down", id)
	}
	if cp.Durability == DurabilityCaptured {
		if cp, err = s.durable.wait(ctx, id); err != nil {
			return cp, err
		}
	}
	cp, release, err := s.pinned(ctx, id)
	if err != nil {
		return cp, err
	}
	defer release()
	damage := s.verify(ctx, cp)
	if damage != nil && CodeOf(damage) != CodeCorrupt {
		return cp, damage
	}
	want := DurabilityDurable
	if damage != nil {
		want = DurabilityDamaged
	}
	if cp.Durability != want {
		err := s.update(ctx, func(tx Tx) error {
			now, err := tx.Checkpoint(id)
			if err != nil {
				return err
			}
			now.Durability, cp.Durability = want, want
			if err := tx.PutCheckpoint(now); err != nil {
				return err
			}
			return s.emit(tx, "checkpoint."+string(want), cp.SandboxID, cp.ID, nil)
		})
		if err != nil {
			return cp, err
		}
	}
	return cp, damage
}

func (s *Service) verify(ctx context.Context, cp Checkpoint) error {
	if CheckpointDigest(cp.LayerDigests) != cp.Digest {
		return Errorf(CodeCorrupt, "the recorded layer digests do not add up to the digest of checkpoint %s", cp.ID)
	}
	layers, err := s.recordedLayers(ctx, cp.Layers())
	if err != nil {
		return err
	}
	for _, l := range layers {
		if l.Digest == "" {
			return Errorf(CodeCorrupt, "nothing is recorded of layer %s of checkpoint %s", l.ID, cp.ID)
		}
		if err := s.o.Layers.Verify(ctx, l.ID, l.Digest); err != nil {
			return fmt.Errorf("checkpoint %s: %w", cp.ID, err)
		}
	}
	return nil
}
