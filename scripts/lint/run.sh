#!/usr/bin/env bash
# Lints Go (by the golangci-lint that go.mod beside this file pins) and shell.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

here=$ROOT/scripts/lint
cd "$here"
hash=$(hash_of "$here/go.mod" "$here/go.sum" -- "$(uname -m)" "$(go env GOVERSION)")
if ! stamp_ok lint "$hash" "$ROOT/bin/golangci-lint"; then
	say "building golangci-lint"
	mkdir -p "$ROOT/bin"
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$ROOT/bin/" \
		github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	stamp lint "$hash"
fi
if ! command -v shellcheck >/dev/null; then
	need_root "installing shellcheck"
	apt_get update
	apt_get install shellcheck
fi

cd "$ROOT"
failed=
# Each runs, whatever the one before it said.
mapfile -t shell < <(git ls-files '*.sh' .ci/run)
shellcheck "${shell[@]}" || failed=1
"$ROOT/bin/golangci-lint" run ./... || failed=1
"$ROOT/bin/golangci-lint" fmt --diff ./... || failed=1
[ -z "$failed" ] || exit 1
say "lint: clean"
