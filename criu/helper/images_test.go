package helper

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// image makes the text of an image of some messages.
func image(messages ...[]byte) []byte {
	b := make([]byte, headerLen)
	for _, m := range messages {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(m)))
		b = append(b, m...)
	}
	return b
}

func number(m []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(m, field, protowire.VarintType), v)
}

func text(m []byte, field protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(m, field, protowire.BytesType), s)
}

func TestFreeSize(t *testing.T) {
	for name, free := range map[string]bool{"/run/cairn/p/a/stdout": true, "run/cairn/stem.log": true, "/run/cairn2/x": false, "/tmp/x": false} {
		reg := number(text(number(nil, 1, 7), 6, name), 8, 1234)
		got, f, err := freeSize(reg, []string{"/run/cairn"})
		if err != nil || (f != nil) != free || (f != nil && f.Size != 1234) {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
		if size := len(got) < len(reg); size != free {
			t.Errorf("%s: the size was taken out: %v", name, size)
		}
	}
}

func TestPIDsOf(t *testing.T) {
	dir := t.TempDir()
	entry := number(number(number(number(number(number(nil, 1, 301), 2, 0), 3, 302), 4, 303), 5, 301), 5, 304)
	if err := os.WriteFile(filepath.Join(dir, pstreeFile), image(entry), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ids, err := pidsOf(f)
	if err != nil || len(ids) != 4 || !ids[301] || !ids[304] || ids[0] {
		t.Errorf("%v, %v", ids, err)
	}
}

func TestExplain(t *testing.T) {
	for log, want := range map[string][3]string{
		"Error (criu/files.c:1): Can't dump file 5 of that type [0] (unknown /dev/x)":                                        {"unsupported", "descriptor 5 (unknown /dev/x)"},
		"Error (criu/image.c:1): Can't write: No space left on device":                                                       {"no_space", "images"},
		"Error (criu/namespaces.c:1): Can't dump nested user namespace for 17":                                               {"unsupported", "user namespace"},
		"    12: Error (criu/files-reg.c:1): File usr/bin/x has bad size 5 (expect 6)":                                       {"images", "file usr/bin/x"},
		"Error (criu/util.c:1532): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted":                      {"failed", ""},
		"Dumping task (pid: 9 comm: x)\nError (criu/x.c:1): never seen before\nError (criu/cr-dump.c:2005): Dumping FAILED.": {"failed", ""},
	} {
		f := explain(log, nil, nil, "dump")
		if f.Code != want[0] || f.Resource != want[1] {
			t.Errorf("%s: %+v", log, f)
		}
	}
}

// Images come from a process that looked at hostile ones.
func FuzzImages(f *testing.F) {
	f.Add(image(text(nil, 3, string(text(number(nil, 1, 1), 6, "/run/cairn/x")))))
	f.Add(image(number(nil, 1, 301)))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		for _, name := range []string{pstreeFile, filesFile, seccompFile, statsFile} {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		d, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		_, _ = pidsOf(d)
		_, _ = readStats(d)
		if _, err := freeSizes(d, []string{"/run/cairn"}); err == nil {
			if _, err := freeSizes(d, []string{"/run/cairn"}); err != nil {
				t.Errorf("what was written can't be read: %v", err)
			}
		}
		_ = addFilters(d, [][]byte{{1, 2, 3}})
	})
}
