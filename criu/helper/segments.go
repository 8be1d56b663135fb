package helper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// CRIU restores System V segments only together with an IPC namespace, which it can't make
// in a sandbox. So their memory goes into the images as what it is to the processes: shared
// memory without a name. The objects themselves are saved and made by package criu.

const (
	inventoryFile  = "inventory.img"
	inventoryMagic = 0x58313116
	commonMagic    = 0x54564319
	pagemapMagic   = 0x56084025

	// What distinguishes segments from other shared memory in the images.
	segmentIDs = 1 << 48

	vmaSystemV = 1 << 10 // VMA_AREA_SYSVIPC
	pageHere   = 1 << 2  // PE_PRESENT
)

// mapping is where a process has a segment attached.
type mapping struct {
	pid        int
	start, end uint64
}

// carrySegments makes ordinary shared memory of the segments in the images. The tree stands
// still.
func carrySegments(images *os.File, t *tree, root int) error {
	if err := stayInIPC(images, root); err != nil {
		return err
	}
	segments := map[uint64]mapping{}
	var list []int
	err := eachProcess(images, func(pid int, _ []int) { list = append(list, pid) })
	if err != nil {
		return err
	}
	for _, pid := range list {
		if err := unnameSegments(images, pid, segments); err != nil {
			return err
		}
	}
	if len(segments) == 0 {
		return nil
	}
	next, err := nextPages(images)
	if err != nil {
		return err
	}
	for id, m := range segments {
		if err := saveSegment(images, t, id, m, next); err != nil {
			return fmt.Errorf("segment %d of System V: %w", id-segmentIDs, err)
		}
		next++
	}
	return nil
}

// stayInIPC makes the images those of a tree that has no IPC namespace of its own.
func stayInIPC(images *os.File, root int) error {
	const rootIDs, ipcID = 3, 7
	ids, err := readImage(images, fmt.Sprintf("ids-%d.img", root))
	if err != nil {
		return err
	}
	var id uint64
	err = entries(ids, func(e []byte) error {
		return fields(e, func(n protowire.Number, _, _ []byte, v uint64) error {
			if n == ipcID {
				id = v
			}
			return nil
		})
	})
	if err != nil || id == 0 {
		return errors.Join(err, errMalformed)
	}
	b, err := readImage(images, inventoryFile)
	if err != nil {
		return err
	}
	// It has but one magic number.
	head := headerLen
	if binary.LittleEndian.Uint32(b) == inventoryMagic {
		head = 4
	}
	out := b[:head:head]
	err = entries(append(make([]byte, headerLen-head), b...), func(e []byte) error {
		made, err := editFields(e, func(n protowire.Number, whole, content []byte, _ uint64) ([]byte, error) {
			if n != rootIDs {
				return whole, nil
			}
			ids, err := editFields(content, func(n protowire.Number, whole, _ []byte, _ uint64) ([]byte, error) {
				if n != ipcID {
					return whole, nil
				}
				return protowire.AppendVarint(protowire.AppendTag(nil, ipcID, protowire.VarintType), id), nil
			})
			return protowire.AppendBytes(protowire.AppendTag(nil, rootIDs, protowire.BytesType), ids), err
		})
		out = append(binary.LittleEndian.AppendUint32(out, uint32(len(made))), made...)
		return err
	})
	if err != nil {
		return err
	}
	return replaceImage(images, inventoryFile, out)
}

// editFields puts for each field of a message what fn returns.
func editFields(m []byte, fn func(n protowire.Number, whole, content []byte, value uint64) ([]byte, error)) ([]byte, error) {
	var made []byte
	err := fields(m, func(n protowire.Number, whole, content []byte, value uint64) error {
		b, err := fn(n, whole, content, value)
		made = append(made, b...)
		return err
	})
	return made, err
}

// unnameSegments changes the mappings of a process, and notes its segments.
func unnameSegments(images *os.File, pid int, segments map[uint64]mapping) error {
	const vmas = 14
	name := fmt.Sprintf("mm-%d.img", pid)
	b, err := readImage(images, name)
	if errors.Is(err, unix.ENOENT) {
		return nil // a zombie
	}
	if err != nil {
		return err
	}
	out := b[:headerLen:headerLen]
	changed := false
	err = entries(b, func(e []byte) error {
		made, err := editFields(e, func(n protowire.Number, whole, content []byte, _ uint64) ([]byte, error) {
			if n != vmas {
				return whole, nil
			}
			vma, id, m, err := unname(content)
			if err != nil || vma == nil {
				return whole, err
			}
			changed = true
			if _, ok := segments[id]; !ok {
				m.pid = pid
				segments[id] = m
			}
			return protowire.AppendBytes(protowire.AppendTag(nil, vmas, protowire.BytesType), vma), nil
		})
		out = append(binary.LittleEndian.AppendUint32(out, uint32(len(made))), made...)
		return err
	})
	if err != nil || !changed {
		return err
	}
	return replaceImage(images, name, out)
}

// unname makes shared memory without a name of a mapping of a segment; nil of another one.
func unname(vma []byte) (made []byte, id uint64, m mapping, err error) {
	const start, end, shmid, status = 1, 2, 4, 7
	var what uint64
	err = fields(vma, func(n protowire.Number, _, _ []byte, v uint64) error {
		switch n {
		case start:
			m.start = v
		case end:
			m.end = v
		case shmid:
			id = v + segmentIDs
		case status:
			what = v
		default:
		}
		return nil
	})
	if err != nil || what&vmaSystemV == 0 {
		return nil, 0, m, err
	}
	number := func(n protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), v)
	}
	made, err = editFields(vma, func(n protowire.Number, whole, _ []byte, _ uint64) ([]byte, error) {
		switch n {
		case shmid:
			return number(n, id), nil
		case status:
			return number(n, what&^vmaSystemV), nil
		default:
			return whole, nil
		}
	})
	return made, id, m, err
}

// nextPages is a number that no file of pages has.
func nextPages(images *os.File) (int, error) {
	fd, err := unix.Openat(int(images.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	d := os.NewFile(uintptr(fd), "images")
	defer d.Close()
	names, err := d.Readdirnames(-1)
	next := 1
	for _, name := range names {
		var n int
		if _, err := fmt.Sscanf(strings.TrimSuffix(name, ".img"), "pages-%d", &n); err == nil {
			next = max(next, n+1)
		}
	}
	return next, err
}

// saveSegment writes the content of a segment, as a process has it attached.
func saveSegment(images *os.File, t *tree, id uint64, m mapping, pages int) error {
	fd, err := unix.Openat(int(t.proc.Fd()), fmt.Sprintf("%d/map_files/%x-%x", m.pid, m.start, m.end), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "segment")
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	out, err := unix.Openat(int(images.Fd()), fmt.Sprintf("pages-%d.img", pages), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	data := os.NewFile(uintptr(out), "pages")
	defer data.Close()
	index := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, commonMagic), pagemapMagic)
	add := func(values ...uint64) { // number of a field and value in turn
		var e []byte
		for i := 0; i < len(values); i += 2 {
			e = protowire.AppendVarint(protowire.AppendTag(e, protowire.Number(values[i]), protowire.VarintType), values[i+1])
		}
		index = append(binary.LittleEndian.AppendUint32(index, uint32(len(e))), e...)
	}
	add(1, uint64(pages))
	page := int64(os.Getpagesize())
	size := (fi.Size() + page - 1) / page * page
	for at := int64(0); at < size; {
		from, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return err
		}
		to, err := unix.Seek(fd, from, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		from, to = from/page*page, (to+page-1)/page*page
		n, err := io.CopyBuffer(struct{ io.Writer }{data}, io.NewSectionReader(f, from, to-from), make([]byte, 1<<20))
		if err != nil {
			return err
		}
		if _, err := data.Write(make([]byte, to-from-n)); err != nil {
			return err
		}
		count := uint64((to - from) / page)
		add(1, uint64(from), 2, count, 4, pageHere, 5, count)
		at = to
	}
	return replaceImage(images, fmt.Sprintf("pagemap-shmem-%d.img", id), index)
}
