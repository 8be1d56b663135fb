package image

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/platforms"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"cairn/sandbox"
)

var (
	base = tarOf(entry{name: "etc/"}, entry{name: "etc/base", data: "base"}, entry{name: "etc/gone", data: "x"})
	top  = tarOf(entry{name: "etc/"}, entry{name: "etc/.wh.gone"}, entry{name: "app", data: "program"})
	last = tarOf(entry{name: "etc/"}, entry{name: "etc/last", data: "last"})
)

func host() ocispec.Platform { return platforms.DefaultSpec() }

func (r *rig) mustPull(t testing.TB, q PullRequest) sandbox.Image {
	t.Helper()
	q.PlainHTTP = true
	img, err := r.Pull(context.Background(), q, nil)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func (r *rig) wantFile(t testing.TB, layer, name, want string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(r.overlay.LayerPath(layer), name))
	if err != nil {
		t.Fatal(err)
	}
	if string(b) != want {
		t.Errorf("%s is %q, want %q", name, b, want)
	}
}

func (r *rig) wantLayers(t testing.TB, want int) {
	t.Helper()
	l, err := r.overlay.List()
	if err != nil {
		t.Fatal(err)
	}
	if len(l) != want {
		t.Errorf("%d layers in the pool, want %d", len(l), want)
	}
}

func TestPull(t *testing.T) {
	addr := registry(t, false)
	f := newFixture(host(), gzipLayer(base), zstdLayer(top), plainLayer(last))
	pusher{t: t, addr: addr, repo: "team/tool"}.image(f, "1")
	r := newRig(t, nil)
	ref := addr + "/team/tool:1"
	said := map[string]bool{}
	img, err := r.Pull(context.Background(), PullRequest{Ref: ref, PlainHTTP: true}, func(p Progress) { said[p.Status] = true })
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"resolving", "downloading", "unpacking", "sealing", "done"} {
		if !said[s] {
			t.Errorf("progress never said %q", s)
		}
	}
	want := sandbox.Image{
		ID: img.ID, Name: ref, Digest: f.manifest.Digest.String(), Layers: img.Layers,
		Env: map[string]string{"PATH": "/bin", "LANG": "C.UTF-8", "EMPTY": ""}, Cwd: "/app", User: "1000:1000",
		Command: []string{"/entry", "arg"}, Labels: map[string]string{"a": "b"},
		SizeBytes: img.SizeBytes, Files: img.Files, CreatedAt: img.CreatedAt,
	}
	if d := cmp.Diff(want, img); d != "" {
		t.Errorf("image (-want +got):\n%s", d)
	}
	if len(img.Layers) != 3 || img.SizeBytes <= 0 || img.Files <= 0 || img.CreatedAt.IsZero() {
		t.Fatalf("image is not complete: %+v", img)
	}
	r.wantFile(t, img.Layers[2], "etc/base", "base") // top first
	r.wantFile(t, img.Layers[1], "app", "program")
	r.wantFile(t, img.Layers[0], "etc/last", "last")
	if st, err := os.Lstat(filepath.Join(r.overlay.LayerPath(img.Layers[1]), "etc/gone")); err != nil || st.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("the whiteout did not become overlayfs's (%v, %v)", st, err)
	}
	err = r.store.View(context.Background(), func(tx sandbox.Tx) error {
		for _, id := range img.Layers {
			l, err := tx.Layer(id)
			if err != nil || l.Digest == "" || l.Files == 0 {
				t.Errorf("layer %s is recorded as %+v (%v)", id, l, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	again := r.mustPull(t, PullRequest{Ref: ref})
	if again.ID != img.ID {
		t.Errorf("the same image pulled again is another: %s, %s", img.ID, again.ID)
	}
	other := r.mustPull(t, PullRequest{Ref: addr + "/team/tool@" + f.manifest.Digest.String(), Name: "other"})
	if other.ID == img.ID || other.Name != "other" || !slices.Equal(other.Layers, img.Layers) {
		t.Errorf("the same image under another name: %+v", other)
	}
	if n := r.pool.applied.Load(); n != 3 {
		t.Errorf("%d layers were unpacked, want 3", n)
	}
	if got, err := r.Get(context.Background(), "other"); err != nil || got.ID != other.ID {
		t.Errorf("get by name: %v, %v", got, err)
	}
	if l, err := r.List(context.Background(), sandbox.Page{}); err != nil || len(l.Items) != 2 {
		t.Errorf("list: %v, %v", l, err)
	}
}

func TestPullWithCredentials(t *testing.T) {
	addr := registry(t, true)
	pusher{t: t, addr: addr, repo: "private", user: "bob", pass: "secret"}.image(newFixture(host(), gzipLayer(base)), "latest")
	r := newRig(t, nil)
	for _, q := range []PullRequest{{}, {Username: "bob", Password: "wrong"}, {Username: "eve", Password: "secret"}} {
		q.Ref, q.PlainHTTP = addr+"/private", true
		_, err := r.Pull(context.Background(), q, nil)
		wantCode(t, err, sandbox.CodeForbidden)
	}
	img := r.mustPull(t, PullRequest{Ref: addr + "/private", Username: "bob", Password: "secret"})
	if img.Name != addr+"/private" {
		t.Errorf("named %q", img.Name)
	}
}

func TestPullRefused(t *testing.T) {
	addr := registry(t, false)
	pusher{t: t, addr: addr, repo: "one"}.image(newFixture(host(), gzipLayer(base)), "1")
	r := newRig(t, nil)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for name, c := range map[string]struct {
		q    PullRequest
		want sandbox.Code
	}{
		"no such tag":       {PullRequest{Ref: addr + "/one:2"}, sandbox.CodeNotFound},
		"no such image":     {PullRequest{Ref: addr + "/two:1"}, sandbox.CodeNotFound},
		"no registry":       {PullRequest{Ref: strings.TrimPrefix(gone.URL, "http://") + "/one:1"}, sandbox.CodeUnavailable},
		"malformed":         {PullRequest{Ref: "UPPER CASE"}, sandbox.CodeInvalid},
		"empty":             {PullRequest{}, sandbox.CodeInvalid},
		"long":              {PullRequest{Ref: strings.Repeat("a", 600)}, sandbox.CodeInvalid},
		"bad name":          {PullRequest{Ref: addr + "/one:1", Name: "-x"}, sandbox.CodeInvalid},
		"name like an id":   {PullRequest{Ref: addr + "/one:1", Name: "img_1"}, sandbox.CodeInvalid},
		"bad platform":      {PullRequest{Ref: addr + "/one:1", Platform: "a/b/c/d/e"}, sandbox.CodeInvalid},
		"not this platform": {PullRequest{Ref: addr + "/one:1", Platform: "linux/s390x"}, sandbox.CodeNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			c.q.PlainHTTP = true
			_, err := r.Pull(context.Background(), c.q, nil)
			wantCode(t, err, c.want)
		})
	}
	r.wantLayers(t, 0)
}

func TestPullChoosesPlatform(t *testing.T) {
	addr := registry(t, false)
	p := pusher{t: t, addr: addr, repo: "many"}
	var index ocispec.Index
	index.SchemaVersion, index.MediaType = 2, ocispec.MediaTypeImageIndex
	arm := ocispec.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"}
	amd := ocispec.Platform{OS: "linux", Architecture: "amd64"}
	byArch := map[string]*fixture{}
	for _, pl := range []ocispec.Platform{arm, amd} {
		f := newFixture(pl, gzipLayer(tarOf(entry{name: "arch", data: pl.Architecture})))
		p.image(f, "")
		byArch[pl.Architecture] = f
		index.Manifests = append(index.Manifests, f.manifest)
	}
	p.manifest("1", index.MediaType, marshal(index))
	r := newRig(t, nil)
	for _, want := range []string{"linux/arm64", "linux/amd64"} {
		img := r.mustPull(t, PullRequest{Ref: addr + "/many:1", Platform: want})
		_, arch, _ := strings.Cut(want, "/")
		r.wantFile(t, img.Layers[0], "arch", arch)
		if img.Digest != byArch[arch].manifest.Digest.String() {
			t.Errorf("digest is %s, not that of the platform's manifest", img.Digest)
		}
	}
	_, err := r.Pull(context.Background(), PullRequest{Ref: addr + "/many:1", PlainHTTP: true, Platform: "linux/riscv64"}, nil)
	wantCode(t, err, sandbox.CodeNotFound)
	if !strings.Contains(err.Error(), "linux/riscv64") {
		t.Errorf("the error does not name the platform: %v", err)
	}
}

func TestPullDamaged(t *testing.T) {
	addr := registry(t, false)
	wrongDiff := newFixture(host(), gzipLayer(base))
	wrongDiff.diffs[0] = digest.FromString("something else")
	wrongDiff.finish(host())
	cut := newFixture(host(), gzipLayer(base), packed{top, ocispec.MediaTypeImageLayerGzip, gz(top)[:40]})
	noTar := newFixture(host(), packed{[]byte("hello"), ocispec.MediaTypeImageLayer, []byte("hello, I am no tar at all")})
	fewer := newFixture(host(), gzipLayer(base))
	fewer.diffs = append(fewer.diffs, fewer.diffs[0])
	fewer.finish(host())
	empty := newFixture(host())
	escape := newFixture(host(), gzipLayer(tarOf(entry{name: "../../escape", data: "x"})))
	r := newRig(t, nil)
	for name, f := range map[string]*fixture{"diff": wrongDiff, "cut": cut, "notar": noTar, "fewer": fewer, "empty": empty, "escape": escape} {
		t.Run(name, func(t *testing.T) {
			pusher{t: t, addr: addr, repo: name}.image(f, "1")
			_, err := r.Pull(context.Background(), PullRequest{Ref: addr + "/" + name + ":1", PlainHTTP: true}, nil)
			wantCode(t, err, sandbox.CodeInvalid)
		})
	}
	r.wantLayers(t, 1) // the good one below the cut one, which the sweep takes
	if l, err := r.List(context.Background(), sandbox.Page{}); err != nil || len(l.Items) != 0 {
		t.Errorf("images: %v, %v", l, err)
	}
}

func TestPullBounds(t *testing.T) {
	addr := registry(t, false)
	bomb := newFixture(host(), gzipLayer(tarOf(entry{name: "zeros", data: strings.Repeat("\x00", 4<<20)})))
	many := newFixture(host(), gzipLayer(base), gzipLayer(top), gzipLayer(last))
	pusher{t: t, addr: addr, repo: "bomb"}.image(bomb, "1")
	pusher{t: t, addr: addr, repo: "many"}.image(many, "1")
	for name, change := range map[string]func(*Options){
		"bomb": func(o *Options) { o.MaxBytes = 1 << 20 },
		"many": func(o *Options) { o.MaxLayers = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, change)
			_, err := r.Pull(context.Background(), PullRequest{Ref: addr + "/" + name + ":1", PlainHTTP: true}, nil)
			wantCode(t, err, sandbox.CodeTooLarge)
			r.wantLayers(t, 0)
		})
	}
	t.Run("entries", func(t *testing.T) {
		r := newRig(t, func(o *Options) { o.MaxEntries = 4 })
		_, err := r.Pull(context.Background(), PullRequest{Ref: addr + "/many:1", PlainHTTP: true}, nil)
		wantCode(t, err, sandbox.CodeTooLarge)
	})
}

func TestNameMoves(t *testing.T) {
	addr := registry(t, false)
	p := pusher{t: t, addr: addr, repo: "moving"}
	r := newRig(t, nil)
	ctx := context.Background()
	var images []sandbox.Image
	for i := range 3 {
		p.image(newFixture(host(), gzipLayer(tarOf(entry{name: "n", data: fmt.Sprint(i)}))), "1")
		img := r.mustPull(t, PullRequest{Ref: addr + "/moving:1"})
		images = append(images, img)
		if i == 1 {
			err := r.store.Update(ctx, func(tx sandbox.Tx) error {
				return tx.PutSandbox(sandbox.Sandbox{ID: "sbx_1", Name: "one", ImageID: img.ID})
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	_, err := r.Get(ctx, images[0].ID)
	wantCode(t, err, sandbox.CodeNotFound)
	if used, err := r.Get(ctx, images[1].ID); err != nil || used.Name != "" || !slices.Equal(used.Layers, images[1].Layers) {
		t.Errorf("the image in use is now %+v (%v)", used, err)
	}
	if now, err := r.Get(ctx, addr+"/moving:1"); err != nil || now.ID != images[2].ID {
		t.Errorf("the name is that of %+v (%v)", now, err)
	}
	wantCode(t, r.Delete(ctx, images[1].ID), sandbox.CodeInUse)
	if err := r.Delete(ctx, addr+"/moving:1"); err != nil {
		t.Error(err)
	}
	wantCode(t, r.Delete(ctx, addr+"/moving:1"), sandbox.CodeNotFound)
	var kinds []string
	if err := r.store.View(ctx, func(tx sandbox.Tx) error {
		events, err := tx.Events(0, 100)
		for _, e := range events {
			kinds = append(kinds, strings.TrimPrefix(e.Type, "image."))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(kinds, " "); got != "created deleted created unnamed created deleted" {
		t.Errorf("events: %s", got)
	}
}

func TestConcurrentPulls(t *testing.T) {
	addr := registry(t, false)
	for i := range 3 {
		f := newFixture(host(), gzipLayer(base), gzipLayer(tarOf(entry{name: "own", data: fmt.Sprint(i)})))
		pusher{t: t, addr: addr, repo: fmt.Sprintf("shared%d", i)}.image(f, "1")
	}
	r := newRig(t, nil)
	var wg sync.WaitGroup
	ids := make([]string, 12)
	for i := range ids {
		wg.Go(func() {
			img, err := r.Pull(context.Background(), PullRequest{Ref: fmt.Sprintf("%s/shared%d:1", addr, i%3), PlainHTTP: true}, nil)
			if err != nil {
				t.Error(err)
			}
			ids[i] = img.ID
		})
	}
	wg.Wait()
	for i, id := range ids {
		if id != ids[i%3] {
			t.Errorf("pull %d gave %s, pull %d of the same gave %s", i, id, i%3, ids[i%3])
		}
	}
	if n := r.pool.applied.Load(); n != 4 {
		t.Errorf("%d layers were unpacked, want 4", n)
	}
}

func TestDebrisOfACrashIsReplaced(t *testing.T) {
	addr := registry(t, false)
	f := newFixture(host(), gzipLayer(base))
	pusher{t: t, addr: addr, repo: "x"}.image(f, "1")
	r := newRig(t, nil)
	if _, err := r.overlay.ApplyTar(context.Background(), layerID(f.diffs[0]), strings.NewReader(string(tarOf(entry{name: "half", data: "x"}))), limitsOfTest); err != nil {
		t.Fatal(err)
	}
	img := r.mustPull(t, PullRequest{Ref: addr + "/x:1"})
	r.wantFile(t, img.Layers[0], "etc/base", "base")
	if _, err := os.Lstat(filepath.Join(r.overlay.LayerPath(img.Layers[0]), "half")); !os.IsNotExist(err) {
		t.Errorf("the debris is in the image (%v)", err)
	}
}

func TestCancelledPull(t *testing.T) {
	block := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		select {
		case <-q.Context().Done():
		case <-block:
		}
	}))
	defer srv.Close()
	defer close(block)
	r := newRig(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	_, err := r.Pull(ctx, PullRequest{Ref: strings.TrimPrefix(srv.URL, "http://") + "/x:1", PlainHTTP: true}, func(Progress) { cancel() })
	wantCode(t, err, sandbox.CodeCancelled)
}

// A registry that is not what it should be.
func TestHostileRegistry(t *testing.T) {
	f := newFixture(host(), gzipLayer(base))
	raw := f.blobs[f.manifest.Digest]
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get("Authorization") != "" {
			t.Error("another host was given the credentials")
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="gimme"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer other.Close()
	elsewhere := strings.Replace(other.URL, "127.0.0.1", "localhost", 1)
	mux := http.NewServeMux()
	serve := func(repo, mediaType string, size int, body []byte) {
		mux.HandleFunc("/v2/"+repo+"/manifests/1", func(w http.ResponseWriter, q *http.Request) {
			w.Header().Set("Content-Type", mediaType)
			w.Header().Set("Docker-Content-Digest", digest.FromBytes(body).String())
			w.Header().Set("Content-Length", fmt.Sprint(size))
			if q.Method != http.MethodHead {
				_, _ = w.Write(body)
			}
		})
		mux.HandleFunc("/v2/"+repo+"/manifests/"+digest.FromBytes(body).String(), func(w http.ResponseWriter, q *http.Request) {
			w.Header().Set("Content-Type", mediaType)
			_, _ = w.Write(body)
		})
	}
	serve("old", "application/vnd.docker.distribution.manifest.v1+prettyjws", len(raw), raw)
	var m ocispec.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	m.Config.Size = 1 << 40
	serve("huge", ocispec.MediaTypeImageManifest, len(marshal(m)), marshal(m))
	serve("json", ocispec.MediaTypeImageManifest, 9, []byte("{not json"))
	self := []byte(`{"schemaVersion":2,"manifests":[],"config":{},"layers":[]}`)
	serve("confused", ocispec.MediaTypeImageManifest, len(self), self)
	serve("chart", "application/vnd.cncf.helm.chart", len(raw), raw)
	serve("away", ocispec.MediaTypeImageManifest, len(raw), raw)
	mux.HandleFunc("/v2/away/blobs/", func(w http.ResponseWriter, q *http.Request) {
		http.Redirect(w, q, elsewhere+"/blob", http.StatusTemporaryRedirect)
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	r := newRig(t, nil)
	for repo, want := range map[string]sandbox.Code{
		"old": sandbox.CodeUnsupported, "huge": sandbox.CodeTooLarge, "json": sandbox.CodeInvalid,
		"confused": sandbox.CodeInvalid, "chart": sandbox.CodeUnsupported, "away": sandbox.CodeForbidden,
	} {
		t.Run(repo, func(t *testing.T) {
			_, err := r.Pull(context.Background(), PullRequest{
				Ref: strings.TrimPrefix(srv.URL, "http://") + "/" + repo + ":1", PlainHTTP: true, Username: "bob", Password: "secret",
			}, nil)
			wantCode(t, err, want)
		})
	}
}
