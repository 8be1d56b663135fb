package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"cairn/sandbox"
)

const (
	recordFile   = "container.json"
	acquiredFile = "acquired"
	ioName       = "io"
)

// record is what a slot's directory says of the container that holds it.
type record struct {
	Name      string          `json:"name"`
	Network   sandbox.Network `json:"network"`
	Spec      string          `json:"spec"` // fingerprint of what it was made from
	Init      string          `json:"init"` // directory with its cairn-init
	CreatedAt time.Time       `json:"created_at"`
	PID       int             `json:"pid,omitempty"` // of PID 1; 0 until it runs
	StartTime uint64          `json:"start_time,omitempty"`
	BootID    string          `json:"boot_id,omitempty"`
}

// slotDirs is the directory of slots.
type slotDirs string

func (d slotDirs) path(slot int, name ...string) string {
	return filepath.Join(append([]string{string(d), strconv.Itoa(slot)}, name...)...)
}

// take makes the directory of a slot; false when it is taken.
func (d slotDirs) take(slot int) (bool, error) {
	err := os.Mkdir(d.path(slot), 0o700)
	if errors.Is(err, os.ErrExist) {
		return false, nil
	}
	return err == nil, err
}

// makeIO makes the directory that is /run/cairn inside. Only root of the host and
// root of the sandbox get as far as there.
func (d slotDirs) makeIO(slot int, idBase uint32) error {
	io := d.path(slot, ioName)
	if err := os.Mkdir(io, 0o755); err != nil {
		return err
	}
	return errors.Join(
		os.Chmod(io, 0o755),
		os.Chown(io, int(idBase), int(idBase)),
		os.Chown(d.path(slot), 0, int(idBase)),
		os.Chmod(d.path(slot), 0o710))
}

// write puts the record in place, whole or not at all.
func (d slotDirs) write(slot int, r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := d.path(slot, recordFile)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// markAcquired makes the container an acquired one.
func (d slotDirs) markAcquired(slot int) error {
	f, err := os.OpenFile(d.path(slot, acquiredFile), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// read gives the record; ok is false when the slot was taken and no more.
func (d slotDirs) read(slot int) (r record, acquired, ok bool, err error) {
	b, err := os.ReadFile(d.path(slot, recordFile))
	if errors.Is(err, os.ErrNotExist) {
		return record{}, false, false, nil
	}
	if err != nil {
		return record{}, false, false, err
	}
	if err := json.Unmarshal(b, &r); err != nil || r.Name == "" {
		return record{}, false, false, fmt.Errorf("record of slot %d is damaged: %w", slot, errors.Join(err, os.ErrInvalid))
	}
	_, err = os.Stat(d.path(slot, acquiredFile))
	return r, err == nil, true, nil
}

// taken lists the slots that have a directory.
func (d slotDirs) taken() ([]int, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	var out []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil && n >= 0 && strconv.Itoa(n) == e.Name() {
			out = append(out, n)
		}
	}
	return out, nil
}

// release removes all of a slot, hostile trees first, the record last but one:
// a release that is cut short is done again by whoever finds the record.
func (d slotDirs) release(slot int) error {
	entries, err := os.ReadDir(d.path(slot))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(d.path(slot), e.Name()); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(d.path(slot))
}
