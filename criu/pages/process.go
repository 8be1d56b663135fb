package pages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/memfd"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/vma"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// maxImage is the size of the largest image that is read at once, in bytes: some 200 000
// mappings.
const maxImage = 16 << 20

// Status bits of a mapping (criu/include/image.h).
const (
	areaRegular = 1 << 0
	areaStack   = 1 << 1
	areaHeap    = 1 << 5
	anonPrivate = 1 << 9
	anonShared  = 1 << 8
)

// messages calls fn for each message of an image.
func messages(dir *os.File, name string, fn func([]byte) error) error {
	f, err := open(dir, name)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxImage+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if len(b) < 8 || len(b) > maxImage {
		return &FormatError{File: name, Message: fmt.Sprintf("%d bytes", len(b))}
	}
	for b = b[8:]; len(b) > 0; {
		if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
			return &FormatError{File: name, Message: "it ends early"}
		}
		n := binary.LittleEndian.Uint32(b)
		if err := fn(b[4 : 4+n]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		b = b[4+n:]
	}
	return nil
}

// mappings are those of a process, in ascending order, guard regions last.
type mappings []*vma.VmaEntry

// readMappings reads them, and which file the process runs: a number in the dump.
func readMappings(dir *os.File, pid uint64) (all mappings, exe uint32, err error) {
	err = messages(dir, fmt.Sprintf("mm-%d.img", pid), func(b []byte) error {
		var m mm.MmEntry
		if err := proto.Unmarshal(b, &m); err != nil {
			return err
		}
		all, exe = append(all, m.Vmas...), m.GetExeFileId()
		return nil
	})
	return all, exe, err
}

// readsZero says whether a page that was never written reads as zero in this mapping, and
// nothing else hangs on its presence. Whatever is not known to be such is not.
func readsZero(v *vma.VmaEntry) bool {
	const kind = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	return v.GetStatus()&(areaRegular|anonPrivate) == areaRegular|anonPrivate &&
		v.GetStatus()&^(areaRegular|anonPrivate|areaStack|areaHeap) == 0 &&
		v.GetFlags()&kind == kind && v.GetFlags()&unix.MAP_HUGETLB == 0
}

// span is a range of addresses.
type span struct{ start, end uint64 }

// zeroSpans are the ranges where pages of zeros may be left out.
func zeroSpans(all mappings) []span {
	var found []span
	var last uint64
	for _, v := range all {
		s := span{v.GetStart(), v.GetEnd()}
		if !readsZero(v) {
			continue
		}
		// Only guard regions, which are listed last, are out of order.
		if s.start < last || s.end <= s.start {
			continue
		}
		last = s.end
		found = append(found, s)
	}
	return found
}

// spanCursor finds out for ascending addresses whether they are in a span.
type spanCursor []span

func (c *spanCursor) has(addr uint64) bool {
	for len(*c) > 0 && (*c)[0].end <= addr {
		*c = (*c)[1:]
	}
	return len(*c) > 0 && (*c)[0].start <= addr
}

// parents gives the parent of each process that was dumped.
func parents(dir *os.File) (map[uint64]uint64, error) {
	found := map[uint64]uint64{}
	err := messages(dir, "pstree.img", func(b []byte) error {
		var e pstree.PstreeEntry
		if err := proto.Unmarshal(b, &e); err != nil {
			return err
		}
		found[uint64(e.GetPid())] = uint64(e.GetPpid())
		return nil
	})
	return found, err
}

// shared tells shared objects of two dumps apart or together. Their numbers are inode
// numbers of the host, which are others in each restored process.
type shared struct {
	mapped map[[2]uint64]uint64 // pid and address of a mapping: the object
	memfds map[string]uint64    // name and order of a memfd: the object
}

func readShared(dir *os.File, pids map[uint64]uint64) (shared, error) {
	s := shared{mapped: map[[2]uint64]uint64{}, memfds: map[string]uint64{}}
	for pid := range pids {
		all, _, err := readMappings(dir, pid)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a zombie
		}
		if err != nil {
			return s, err
		}
		for _, v := range all {
			if v.GetStatus()&anonShared != 0 {
				s.mapped[[2]uint64{pid, v.GetStart() - v.GetPgoff()}] = v.GetShmid()
			}
		}
	}
	err := messages(dir, "memfd.img", func(b []byte) error {
		var m memfd.MemfdInodeEntry
		if err := proto.Unmarshal(b, &m); err != nil {
			return err
		}
		s.memfds[fmt.Sprintf("%d %s", m.GetInodeId(), m.GetName())] = uint64(m.GetShmid())
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return s, err
}

// match gives for the objects of s those of the former dump that are likely the same. A
// wrong guess costs nothing but what could have been shared.
func (s shared) match(former shared) map[uint64]uint64 {
	found := map[uint64]uint64{}
	for k, id := range s.mapped {
		if was, ok := former.mapped[k]; ok {
			found[id] = was
		}
	}
	for k, id := range s.memfds {
		if was, ok := former.memfds[k]; ok {
			found[id] = was
		}
	}
	return found
}
