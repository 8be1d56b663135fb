package criu_test

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"cairn/criu"

	"google.golang.org/protobuf/encoding/protowire"
)

// otherCPU alters what images say of the CPU: it calls fn for each number that they have,
// with that of its field, and writes what it returns.
func otherCPU(t testing.TB, images *os.File, fn func(field protowire.Number, word int, v uint64) uint64) {
	t.Helper()
	path := filepath.Join(images.Name(), "cpuinfo.img")
	b, err := os.ReadFile(path)
	check(t, err)
	const head = 12 // two magic numbers and the length of the one entry
	_, _, n := protowire.ConsumeTag(b[head:])
	cpu, _ := protowire.ConsumeBytes(b[head+n:])
	var made []byte
	words := map[protowire.Number]int{}
	for len(cpu) > 0 {
		num, typ, n := protowire.ConsumeTag(cpu)
		size := protowire.ConsumeFieldValue(num, typ, cpu[n:])
		if size < 0 {
			t.Fatal("malformed image")
		}
		if typ == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(cpu[n:])
			made = protowire.AppendVarint(protowire.AppendTag(made, num, typ), fn(num, words[num], v))
			words[num]++
		} else {
			made = append(made, cpu[:n+size]...)
		}
		cpu = cpu[n+size:]
	}
	entry := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), made)
	out := binary.LittleEndian.AppendUint32(b[:8:8], uint32(len(entry)))
	check(t, os.WriteFile(path, append(out, entry...), 0o600))
}

// A CPU that lacks what the one of the dump had is refused, one that has more is not.
func TestCPU(t *testing.T) {
	c := newCRIU(t, nil)
	b := newBox(t)
	id := b.startWorkload(t)
	images := newImages(t)
	_, err := c.Dump(t.Context(), b.target(), images, criu.DumpOptions{})
	check(t, err)
	was, err := os.ReadFile(filepath.Join(images.Name(), "cpuinfo.img"))
	check(t, err)
	b.clear(t, c)
	const capability, xfeatures, xsave = 6, 8, 9
	const firstOfSeven, avx512 = 9, 1 << 16 // CPUID leaf 7, EBX
	for name, alter := range map[string]func(protowire.Number, int, uint64) uint64{
		"instructions": func(n protowire.Number, word int, v uint64) uint64 {
			if n == capability && word == firstOfSeven {
				return ^uint64(0) >> 32
			}
			return v
		},
		"registers": func(n protowire.Number, _ int, v uint64) uint64 {
			if n == xfeatures {
				return v | 1<<40
			}
			return v
		},
		"room for registers": func(n protowire.Number, _ int, v uint64) uint64 {
			if n == xsave {
				return v + 64
			}
			return v
		},
	} {
		otherCPU(t, images, alter)
		_, err := c.Restore(t.Context(), b.target(), images, criu.RestoreOptions{})
		var e *criu.Error
		if !errors.As(err, &e) || e.Code != criu.CodeUnsupported || e.Resource != "CPU" {
			t.Errorf("%s: %v", name, err)
		}
		if left := b.states(t); len(left) != 1 {
			t.Errorf("%s: processes are left: %v", name, left)
		}
		check(t, os.WriteFile(filepath.Join(images.Name(), "cpuinfo.img"), was, 0o600))
	}
	otherCPU(t, images, func(n protowire.Number, word int, v uint64) uint64 {
		if n == capability && word == firstOfSeven {
			return v &^ (avx512 | 1<<5 | 1<<8) // no AVX-512, AVX2, BMI2
		}
		return v
	})
	b.restore(t, c, images)
	b.ask(t, id, "after")
}
