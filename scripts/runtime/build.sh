#!/usr/bin/env bash
# Builds containerd, its shim and runc into bin/, from the versions in go.mod beside this
# file.
#
# containerd goes without CRI and the snapshotters that Cairn has no use for; the shim,
# of which every sandbox has one, goes without gRPC (it speaks ttrpc) and without symbols,
# which keeps its memory small. runc needs cgo, for its start-up code and libseccomp.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

here=$ROOT/scripts/runtime
containerd=github.com/containerd/containerd/v2
outputs=("$ROOT/bin/containerd" "$ROOT/bin/containerd-shim-runc-v2" "$ROOT/bin/runc")

cd "$here" # go's version is the one that this go.mod selects
hash=$(hash_of "$here/go.mod" "$here/go.sum" "$here/build.sh" -- "$(uname -m)" "$(go env GOVERSION)")
if stamp_ok runtime "$hash" "${outputs[@]}"; then
	exit
fi

mkdir -p "$ROOT/bin"
new=$(mktemp -d "$ROOT/bin/.runtime.XXXXXX")
trap 'rm -rf "$new"' EXIT
version=$(go list -m -f '{{.Version}}' "$containerd")
strip="-s -w -X $containerd/version.Version=$version"

say "building containerd $version and its shim"
CGO_ENABLED=0 go build -trimpath -ldflags "$strip" -tags no_grpc \
	-o "$new/" "$containerd/cmd/containerd-shim-runc-v2"
CGO_ENABLED=0 go build -trimpath -ldflags "$strip" \
	-tags no_cri,no_btrfs,no_devmapper,no_zfs,no_tracing \
	-o "$new/" "$containerd/cmd/containerd"

say "building runc $(go list -m -f '{{.Version}}' github.com/opencontainers/runc)"
CGO_ENABLED=1 go build -trimpath -ldflags '-s -w' -tags seccomp \
	-o "$new/" github.com/opencontainers/runc

"$new/runc" --version | grep -q '^libseccomp:' || die "runc was built without seccomp"
# By rename: a containerd or runc that runs keeps its own file.
mv "$new"/* "$ROOT/bin/"
stamp runtime "$hash"
