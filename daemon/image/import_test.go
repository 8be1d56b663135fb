package image

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"cairn/overlay"
	"cairn/sandbox"
)

var limitsOfTest = overlay.Limits{Bytes: 1 << 30, Entries: 1 << 20}

var rootfs = tarOf(entry{name: "./"}, entry{name: "./bin/"}, entry{name: "./bin/sh", data: "#!"}, entry{name: "./etc/"})

func TestImportArchives(t *testing.T) {
	f := newFixture(host(), gzipLayer(base), plainLayer(top))
	named := layout(map[string]string{images.AnnotationImageName: "docker.io/library/tool:1"}, f)
	saved := newFixture(host(), plainLayer(base), plainLayer(top))
	for name, c := range map[string]struct {
		data       []byte
		give, want string
	}{
		"layout":         {named, "", "tool:1"},
		"layout renamed": {named, "mine", "mine"},
		"layout gzip":    {gz(named), "", "tool:1"},
		"layout zstd":    {zst(named), "", "tool:1"},
		"docker save":    {dockerSave(saved, "tool:2", "tool:3"), "", "tool:2"},
		"docker gzip":    {gz(dockerSave(saved, "example.org/a/tool:2")), "", "example.org/a/tool:2"},
		"tag only":       {layout(map[string]string{ocispec.AnnotationRefName: "latest"}, f), "named", "named"},
		"no tag":         {dockerSave(saved), "named", "named"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			img, err := r.Import(context.Background(), bytes.NewReader(c.data), c.give)
			if err != nil {
				t.Fatal(err)
			}
			if img.Name != c.want || len(img.Layers) != 2 || img.Cwd != "/app" {
				t.Errorf("imported as %+v, want the name %q", img, c.want)
			}
			r.wantFile(t, img.Layers[0], "app", "program")
			again, err := r.ImportArchive(context.Background(), bytes.NewReader(c.data), c.give)
			if err != nil || again.ID != img.ID {
				t.Errorf("imported again: %s (%v), want %s", again.ID, err, img.ID)
			}
			if n := r.pool.applied.Load(); n != 2 {
				t.Errorf("%d layers were unpacked, want 2", n)
			}
		})
	}
}

// A pulled image and the same one from an archive share their layers.
func TestArchiveSharesLayers(t *testing.T) {
	addr := registry(t, false)
	pusher{t: t, addr: addr, repo: "x"}.image(newFixture(host(), gzipLayer(base), zstdLayer(top)), "1")
	r := newRig(t, nil)
	pulled := r.mustPull(t, PullRequest{Ref: addr + "/x:1"})
	img, err := r.Import(context.Background(), bytes.NewReader(dockerSave(newFixture(host(), plainLayer(base), plainLayer(top)), "x:1")), "")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(img.Layers, pulled.Layers) || r.pool.applied.Load() != 2 {
		t.Errorf("layers %v and %v, %d unpacked", img.Layers, pulled.Layers, r.pool.applied.Load())
	}
}

func TestImportRootFS(t *testing.T) {
	r := newRig(t, nil)
	var first sandbox.Image
	for name, data := range map[string][]byte{"plain": rootfs, "gzip": gz(rootfs), "zstd": zst(rootfs)} {
		img, err := r.Import(context.Background(), bytes.NewReader(data), "debian")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if first.ID == "" {
			first = img
			if want := digest.FromBytes(rootfs).String(); img.Digest != want {
				t.Errorf("digest %s, want %s", img.Digest, want)
			}
			r.wantFile(t, img.Layers[0], "bin/sh", "#!")
		}
		if img.ID != first.ID {
			t.Errorf("%s: the same content is another image", name)
		}
	}
	other, err := r.ImportRootFS(context.Background(), bytes.NewReader(rootfs), "other")
	if err != nil || other.ID == first.ID || !slices.Equal(other.Layers, first.Layers) {
		t.Errorf("under another name: %+v (%v)", other, err)
	}
	r.wantLayers(t, 1)
}

func TestConcurrentRootFSImports(t *testing.T) {
	r := newRig(t, nil)
	var wg sync.WaitGroup
	ids := make([]string, 6)
	for i := range ids {
		wg.Go(func() {
			img, err := r.Import(context.Background(), bytes.NewReader(rootfs), "debian")
			if err != nil {
				t.Error(err)
			}
			ids[i] = img.ID
		})
	}
	wg.Wait()
	if len(slices.Compact(ids)) != 1 {
		t.Errorf("images: %v", ids)
	}
	r.wantLayers(t, 1)
}

type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }

func TestImportRefused(t *testing.T) {
	f, g := newFixture(host(), gzipLayer(base)), newFixture(host(), gzipLayer(top))
	lacking := newFixture(host(), gzipLayer(base))
	delete(lacking.blobs, lacking.layers[0].Digest)
	noConfig := newFixture(host(), gzipLayer(base))
	delete(noConfig.blobs, noConfig.config.Digest)
	foreign := newFixture(ocispec.Platform{OS: "linux", Architecture: "s390x"}, gzipLayer(base))
	nice := layout(nil, f)
	for name, c := range map[string]struct {
		r    io.Reader
		name string
		want sandbox.Code
	}{
		"nothing":            {strings.NewReader(""), "x", sandbox.CodeInvalid},
		"garbage":            {strings.NewReader(strings.Repeat("garbage ", 1000)), "x", sandbox.CodeInvalid},
		"an empty tar":       {bytes.NewReader(tarOf()), "x", sandbox.CodeInvalid},
		"xz":                 {bytes.NewReader([]byte("\xfd7zXZ\x00\x00\x00")), "x", sandbox.CodeInvalid},
		"damaged gzip":       {bytes.NewReader(append(gz(rootfs)[:100], 1, 2, 3)), "x", sandbox.CodeInvalid},
		"cut gzip":           {bytes.NewReader(gz(nice)[:len(gz(nice))/2]), "x", sandbox.CodeInvalid},
		"cut zstd":           {bytes.NewReader(zst(nice)[:len(zst(nice))/2]), "x", sandbox.CodeInvalid},
		"cut archive":        {bytes.NewReader(nice[:len(nice)-4000]), "x", sandbox.CodeInvalid},
		"cut rootfs":         {bytes.NewReader(rootfs[:1537]), "x", sandbox.CodeInvalid},
		"cut between files":  {bytes.NewReader(rootfs[:1024]), "x", sandbox.CodeInvalid},
		"several images":     {bytes.NewReader(layoutOfSeveral(f, g)), "", sandbox.CodeInvalid},
		"no image":           {bytes.NewReader(layout(nil)), "x", sandbox.CodeInvalid},
		"no name":            {bytes.NewReader(nice), "", sandbox.CodeInvalid},
		"rootfs, no name":    {bytes.NewReader(rootfs), "", sandbox.CodeInvalid},
		"bad name":           {bytes.NewReader(nice), "a b", sandbox.CodeInvalid},
		"lacks a layer":      {bytes.NewReader(layout(nil, lacking)), "x", sandbox.CodeInvalid},
		"lacks its config":   {bytes.NewReader(layout(nil, noConfig)), "x", sandbox.CodeInvalid},
		"another platform":   {bytes.NewReader(layout(nil, foreign)), "x", sandbox.CodeNotFound},
		"escapes":            {bytes.NewReader(tarOf(entry{name: "bin/"}, entry{name: "../x", data: "x"})), "x", sandbox.CodeInvalid},
		"no index":           {bytes.NewReader(tarOf(entry{name: "oci-layout", data: `{"imageLayoutVersion":"1.0.0"}`})), "x", sandbox.CodeInvalid},
		"no manifest":        {bytes.NewReader(tarOf(entry{name: "blobs/"})), "x", sandbox.CodeInvalid},
		"another version":    {bytes.NewReader(tarOf(entry{name: "oci-layout", data: `{"imageLayoutVersion":"9"}`})), "x", sandbox.CodeInvalid},
		"manifest not there": {bytes.NewReader(tarOf(entry{name: "manifest.json", data: `[{"Config":"../../etc/passwd","Layers":["x"]}]`})), "x", sandbox.CodeInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			_, err := r.Import(context.Background(), c.r, c.name)
			wantCode(t, err, c.want)
			r.wantLayers(t, 0)
		})
	}
	t.Run("upload fails", func(t *testing.T) {
		r := newRig(t, nil)
		_, err := r.Import(context.Background(), io.MultiReader(bytes.NewReader(rootfs[:1536]), failingReader{errors.New("connection reset")}), "x")
		wantCode(t, err, sandbox.CodeInvalid)
		r.wantLayers(t, 0)
	})
	t.Run("too large", func(t *testing.T) {
		r := newRig(t, func(o *Options) { o.MaxBytes = 4096 })
		for _, data := range [][]byte{nice, gz(nice), tarOf(entry{name: "bin/"}, entry{name: "zeros", data: strings.Repeat("\x00", 1<<20)})} {
			_, err := r.Import(context.Background(), bytes.NewReader(data), "x")
			wantCode(t, err, sandbox.CodeTooLarge)
		}
		r.wantLayers(t, 0)
	})
}

// layoutOfSeveral is an archive of images with a name each.
func layoutOfSeveral(images ...*fixture) []byte {
	var index ocispec.Index
	index.SchemaVersion = 2
	var entries []entry
	for i, f := range images {
		d := f.manifest
		d.Annotations = map[string]string{ocispec.AnnotationRefName: "example.org/x:" + string(rune('a'+i))}
		index.Manifests = append(index.Manifests, d)
		for dg, b := range f.blobs {
			entries = append(entries, entry{name: "blobs/sha256/" + dg.Encoded(), data: string(b)})
		}
	}
	entries = append(entries, entry{name: "index.json", data: string(marshal(index))},
		entry{name: "oci-layout", data: `{"imageLayoutVersion":"1.0.0"}`})
	return tarOf(entries...)
}

func TestDetect(t *testing.T) {
	f := newFixture(host(), gzipLayer(base))
	for name, c := range map[string]struct {
		tar  []byte
		want kind
	}{
		"layout":         {layout(nil, f), kindArchive},
		"docker save":    {dockerSave(f), kindArchive},
		"tar of layout":  {tarOf(entry{name: "./"}, entry{name: "./index.json", data: "{}"}), kindArchive},
		"root":           {rootfs, kindRootFS},
		"deep blobs":     {tarOf(entry{name: "usr/blobs/"}), kindRootFS},
		"absolute":       {tarOf(entry{name: "/etc/"}), kindRootFS},
		"almost a layer": {tarOf(entry{name: strings.Repeat("a", 63) + "/"}), kindRootFS},
	} {
		if got, err := detect(c.tar); err != nil || got != c.want {
			t.Errorf("%s: %v (%v), want %v", name, got, err, c.want)
		}
	}
}

func FuzzDetect(f *testing.F) {
	f.Add(rootfs)
	f.Add(gz(rootfs))
	f.Add(zst(rootfs))
	f.Add(layout(nil, newFixture(host(), gzipLayer(base))))
	f.Fuzz(func(t *testing.T, b []byte) {
		const most = 1 << 20
		r, err := decompress(bytes.NewReader(b))
		if err != nil {
			wantCode(t, err, sandbox.CodeInvalid)
			return
		}
		defer r.Close()
		head, err := io.ReadAll(io.LimitReader(r, most))
		if err != nil && len(head) == 0 {
			return
		}
		if k, err := detect(head); err == nil && k != kindArchive && k != kindRootFS {
			t.Errorf("kind %v", k)
		} else if err != nil {
			wantCode(t, err, sandbox.CodeInvalid)
		}
	})
}

func FuzzRef(f *testing.F) {
	f.Add("debian")
	f.Add("127.0.0.1:5000/a/b:c@sha256:" + strings.Repeat("a", 64))
	f.Fuzz(func(t *testing.T, ref string) {
		full, host, err := parseRef(ref)
		if err != nil {
			wantCode(t, err, sandbox.CodeInvalid)
			return
		}
		again, host2, err := parseRef(full)
		if err != nil && len(full) <= maxRef || err == nil && (again != full || host2 != host) {
			t.Errorf("%q completes to %q, and that to %q (%v)", ref, full, again, err)
		}
	})
}
