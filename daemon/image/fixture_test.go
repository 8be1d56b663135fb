package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// entry is one entry of a tar: a directory when its name ends in "/".
type entry struct {
	name, data string
	header     tar.Header // whatever else it has
}

func tarOf(entries ...entry) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := e.header
		h.Name = e.name
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
			if strings.HasSuffix(e.name, "/") {
				h.Typeflag = tar.TypeDir
			}
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		h.Size = int64(len(e.data))
		if err := w.WriteHeader(&h); err != nil {
			panic(err)
		}
		if _, err := io.WriteString(w, e.data); err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func gz(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return out.Bytes()
}

func zst(b []byte) []byte {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		panic(err)
	}
	defer e.Close()
	return e.EncodeAll(b, nil)
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// fixture is an image with the blobs that it needs.
type fixture struct {
	blobs    map[digest.Digest][]byte
	config   descriptor
	layers   []descriptor
	diffs    []digest.Digest
	manifest descriptor
}

func (f *fixture) blob(mediaType string, b []byte) descriptor {
	d := descriptor{MediaType: mediaType, Digest: digest.FromBytes(b), Size: int64(len(b))}
	f.blobs[d.Digest] = b
	return d
}

// packed is a layer as it is transported.
type packed struct {
	tar       []byte
	mediaType string
	blob      []byte
}

func plainLayer(t []byte) packed { return packed{t, ocispec.MediaTypeImageLayer, t} }
func gzipLayer(t []byte) packed  { return packed{t, ocispec.MediaTypeImageLayerGzip, gz(t)} }
func zstdLayer(t []byte) packed  { return packed{t, ocispec.MediaTypeImageLayerZstd, zst(t)} }

func newFixture(platform ocispec.Platform, layers ...packed) *fixture {
	f := &fixture{blobs: map[digest.Digest][]byte{}}
	for _, l := range layers {
		f.layers = append(f.layers, f.blob(l.mediaType, l.blob))
		f.diffs = append(f.diffs, digest.FromBytes(l.tar))
	}
	f.finish(platform)
	return f
}

// finish makes the configuration and the manifest out of the layers.
func (f *fixture) finish(platform ocispec.Platform) {
	f.config = f.blob(ocispec.MediaTypeImageConfig, marshal(ocispec.Image{
		Platform: platform,
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: f.diffs},
		Config: ocispec.ImageConfig{
			Env: []string{"PATH=/bin", "LANG=C.UTF-8", "broken", "EMPTY="}, WorkingDir: "/app", User: "1000:1000",
			Entrypoint: []string{"/entry"}, Cmd: []string{"arg"}, Labels: map[string]string{"a": "b"},
		},
	}))
	f.manifest = f.blob(ocispec.MediaTypeImageManifest, marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: f.config, Layers: f.layers,
	}))
	p := platform
	f.manifest.Platform = &p
}

// layout is the images as an OCI layout tar; annotations go to each.
func layout(annotations map[string]string, images ...*fixture) []byte {
	var index ocispec.Index
	index.SchemaVersion, index.MediaType = 2, ocispec.MediaTypeImageIndex
	entries := []entry{{name: "blobs/"}, {name: "blobs/sha256/"}}
	for _, f := range images {
		d := f.manifest
		d.Annotations = annotations
		index.Manifests = append(index.Manifests, d)
		for dg, b := range f.blobs {
			entries = append(entries, entry{name: "blobs/sha256/" + dg.Encoded(), data: string(b)})
		}
	}
	entries = append(entries,
		entry{name: "index.json", data: string(marshal(index))},
		entry{name: "oci-layout", data: `{"imageLayoutVersion":"1.0.0"}`})
	return tarOf(entries...)
}

// dockerSave is the image as the docker of old saves it.
func dockerSave(f *fixture, tags ...string) []byte {
	var entries []entry
	var layers []string
	for i, l := range f.layers {
		dir := fmt.Sprintf("%064x", i+1)
		layers = append(layers, dir+"/layer.tar")
		entries = append(entries, entry{name: dir + "/"}, entry{name: dir + "/VERSION", data: "1.0"},
			entry{name: dir + "/layer.tar", data: string(f.blobs[l.Digest])})
	}
	config := f.config.Digest.Encoded() + ".json"
	entries = append(entries, entry{name: config, data: string(f.blobs[f.config.Digest])},
		entry{name: "manifest.json", data: string(marshal([]map[string]any{{"Config": config, "RepoTags": tags, "Layers": layers}}))},
		entry{name: "repositories", data: "{}"})
	return tarOf(entries...)
}

// pusher puts content into a registry by its HTTP API.
type pusher struct {
	t          testing.TB
	addr, repo string
	user, pass string
}

func (p pusher) do(method, url, mediaType string, body []byte) *http.Response {
	p.t.Helper()
	req, err := http.NewRequest(method, url, bytes.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	if mediaType != "" {
		req.Header.Set("Content-Type", mediaType)
	}
	if p.user != "" {
		req.SetBasicAuth(p.user, p.pass)
	}
	res, err := httpClient().Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode >= 300 {
		b, _ := io.ReadAll(res.Body)
		p.t.Fatalf("%s %s: %s: %s", method, url, res.Status, b)
	}
	return res
}

func (p pusher) blob(b []byte) {
	p.t.Helper()
	res := p.do("POST", fmt.Sprintf("http://%s/v2/%s/blobs/uploads/", p.addr, p.repo), "", nil)
	url := res.Header.Get("Location")
	sep := "?"
	if strings.Contains(url, "?") {
		sep = "&"
	}
	p.do("PUT", url+sep+"digest="+digest.FromBytes(b).String(), "application/octet-stream", b)
}

func (p pusher) manifest(ref, mediaType string, b []byte) {
	p.t.Helper()
	p.do("PUT", fmt.Sprintf("http://%s/v2/%s/manifests/%s", p.addr, p.repo, ref), mediaType, b)
}

// image pushes f under the tag, or by its digest alone without one.
func (p pusher) image(f *fixture, tag string) {
	p.t.Helper()
	for d, b := range f.blobs {
		if d != f.manifest.Digest {
			p.blob(b)
		}
	}
	if tag == "" {
		tag = f.manifest.Digest.String()
	}
	p.manifest(tag, f.manifest.MediaType, f.blobs[f.manifest.Digest])
}
