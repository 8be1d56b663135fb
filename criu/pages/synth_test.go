package pages

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/vma"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

const (
	regular     = areaRegular | anonPrivate
	filePrivate = areaRegular | 1<<6
	anon        = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
)

// process is one of a made dump. Pages are given by address, as a byte that fills them.
type process struct {
	pid, ppid uint32
	vmas      []*vma.VmaEntry
	pages     map[uint64]byte
}

func area(start, end uint64, status, flags uint32) *vma.VmaEntry {
	return &vma.VmaEntry{
		Start: &start, End: &end, Status: &status, Flags: &flags,
		Pgoff: proto.Uint64(0), Shmid: proto.Uint64(0), Prot: proto.Uint32(3), Fd: proto.Int64(-1),
	}
}

func image(messages ...proto.Message) []byte {
	b := binary.LittleEndian.AppendUint32(nil, magicCommon)
	b = binary.LittleEndian.AppendUint32(b, 1)
	for _, m := range messages {
		body, err := proto.MarshalOptions{AllowPartial: true}.Marshal(m)
		if err != nil {
			panic(err)
		}
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(body))), body...)
	}
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

type tempDirer interface {
	Fatal(args ...any)
	Helper()
}

func newDir(t tempDirer, root string) *os.File {
	t.Helper()
	name, err := os.MkdirTemp(root, "")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// makeDump writes a dump as CRIU would.
func makeDump(t tempDirer, root string, processes []process, objects map[uint64]map[uint64]byte) *os.File {
	t.Helper()
	dir := newDir(t, root)
	put := func(name string, b []byte) {
		if err := os.WriteFile(filepath.Join(dir.Name(), name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	id := uint32(0)
	memory := func(name string, pages map[uint64]byte) {
		id++
		var pagemap, content bytes.Buffer
		w := newMapWriter(&pagemap, id)
		var cur entry
		for at := uint64(0); at < 1<<20; at += pageSize {
			b, ok := pages[at]
			if ok {
				content.Write(bytes.Repeat([]byte{b}, pageSize))
			}
			switch {
			case ok && cur.pages > 0 && cur.end() == at:
				cur.pages++
			case ok:
				if cur.pages > 0 {
					w.add(cur)
				}
				cur = entry{addr: at, pages: 1, flags: present}
			}
		}
		if cur.pages > 0 {
			w.add(cur)
		}
		if err := w.flush(); err != nil {
			t.Fatal(err)
		}
		put(name, pagemap.Bytes())
		put(pagesName(id), content.Bytes())
	}
	var tree []proto.Message
	for _, p := range processes {
		tree = append(tree, &pstree.PstreeEntry{Pid: &p.pid, Ppid: &p.ppid, Pgid: &p.pid, Sid: &p.pid})
		put(fmt.Sprintf("mm-%d.img", p.pid), image(&mm.MmEntry{
			Vmas: p.vmas, MmStartCode: new(uint64), MmEndCode: new(uint64), MmStartData: new(uint64), MmEndData: new(uint64),
			MmStartStack: new(uint64), MmStartBrk: new(uint64), MmBrk: new(uint64), MmArgStart: new(uint64), MmArgEnd: new(uint64),
			MmEnvStart: new(uint64), MmEnvEnd: new(uint64), ExeFileId: new(uint32),
		}))
		memory(mapName(uint64(p.pid), false), p.pages)
	}
	for id, pages := range objects {
		memory(mapName(id, true), pages)
	}
	put("pstree.img", image(tree...))
	put("inventory.img", []byte("what Compact does not read"))
	return dir
}

// readBack reads a pagemap in the way of CRIU's page_read, with the whole file at once.
func readBack(dir, name string) (map[uint64]byte, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := newMapReader(name, f)
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(filepath.Join(dir, pagesName(m.id)))
	if err != nil {
		return nil, err
	}
	parent, err := readBack(filepath.Join(dir, parentDir), name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	found := map[uint64]byte{}
	for {
		e, err := m.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		for at := e.addr; at < e.end(); at += pageSize {
			if e.flags&inParent != 0 {
				b, ok := parent[at]
				if !ok {
					return nil, fmt.Errorf("%s: %#x is not in the parent", name, at)
				}
				found[at] = b
				continue
			}
			p := content[:pageSize]
			if !bytes.Equal(p, bytes.Repeat(p[:1], pageSize)) {
				return nil, fmt.Errorf("%s: a mixed page", name)
			}
			found[at], content = p[0], content[pageSize:]
		}
	}
	if len(content) > 0 {
		return nil, fmt.Errorf("%s: pages are left over", name)
	}
	return found, nil
}
