package image

import (
	"context"
	"regexp"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"cairn/sandbox"
)

const maxName = 255

var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/:@+-]*$`)

// checkName refuses names that could not be asked for later.
func checkName(name string) error {
	switch {
	case name == "":
		return sandbox.Invalid("name", "the image needs a name")
	case len(name) > maxName:
		return sandbox.Invalid("name", "it is longer than %d bytes", maxName)
	case strings.HasPrefix(name, "img_"):
		return sandbox.Invalid("name", "names that begin with img_ are ids")
	case !namePattern.MatchString(name):
		return sandbox.Invalid("name", "letters, digits and . _ / : @ + - are allowed, a letter or digit first")
	}
	return nil
}

// described is what an image's configuration says of how to run it.
func described(c ocispec.Image) sandbox.Image {
	img := sandbox.Image{
		Cwd: c.Config.WorkingDir, User: c.Config.User, Labels: c.Config.Labels,
		Command: slices.Concat(c.Config.Entrypoint, c.Config.Cmd),
	}
	for _, kv := range c.Config.Env {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" || strings.ContainsRune(kv, 0) {
			continue // nothing could have been made of it
		}
		if img.Env == nil {
			img.Env = map[string]string{}
		}
		img.Env[k] = v
	}
	return img
}

// commit records img under its name, and returns what is recorded: the image
// that is there already when it is the same.
func (m *Manager) commit(ctx context.Context, img sandbox.Image) (sandbox.Image, error) {
	img.ID, img.CreatedAt = m.o.NewID("img"), m.o.Now()
	changed := false
	err := m.o.Store.Update(ctx, func(tx sandbox.Tx) error {
		old, err := tx.Image(img.Name)
		switch {
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
		case err != nil:
			return err
		case old.Digest == img.Digest && slices.Equal(old.Layers, img.Layers):
			img = old
			return nil
		default:
			if err := m.unname(tx, old); err != nil {
				return err
			}
		}
		changed = true
		if err := tx.PutImage(img); err != nil {
			return err
		}
		return m.emit(tx, "image.created", img)
	})
	if err != nil {
		return sandbox.Image{}, err
	}
	if changed {
		m.o.Changed()
	}
	return img, m.o.Store.Sync(ctx)
}

// unname takes the name off an image: it goes, unless something is of it.
func (m *Manager) unname(tx sandbox.Tx, old sandbox.Image) error {
	err := tx.DeleteImage(old.ID)
	if err == nil {
		return m.emit(tx, "image.deleted", old)
	}
	if sandbox.CodeOf(err) != sandbox.CodeInUse {
		return err
	}
	old.Name = ""
	if err := tx.PutImage(old); err != nil {
		return err
	}
	return m.emit(tx, "image.unnamed", old)
}
