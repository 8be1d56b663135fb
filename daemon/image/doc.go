// Package image brings images into the pool: from a registry, from an archive
// as `docker save` writes it or in OCI layout, or from a tar of a root file system.
//
// Vocabulary. A blob is compressed content as it is transported; blobs pass
// through containerd's content store. A diff is the uncompressed tar of one
// image layer, its digest the diff id. A chain id is the digest over the diff ids
// from the bottom up to a layer: it names the layer's result.
//
// A layer of the pool is named after its chain id, so images share what they
// have in common, and what is there is not downloaded again.
//
// Names. An image without a name given is named by its reference as it was
// written: "debian" and "debian:latest" are two names, for one set of layers.
// A name is unique. When a pull or an import gives it to other content, the
// former image is deleted; when sandboxes or checkpoints are of it, it stays
// and loses its name. The same content under the same name is the same image.
//
// Invariants:
//
//   - Nothing stays in the content store: a lease holds the blobs while they are
//     needed, and its end removes them. A lease that a killed daemon left expires.
//   - A layer is pinned before it is looked for or made, until the commit that
//     names it. A layer without a record in the metadata is debris of a crash
//     and is made anew.
//   - A layer is sealed, so on disk, before it is recorded; its diff id has
//     been compared with the image's configuration before that.
//   - What a registry or an archive says is untrusted: sizes, counts and depths
//     are bounded, digests are checked, credentials go to the named registry only.
package image
