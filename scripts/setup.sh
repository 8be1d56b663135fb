#!/usr/bin/env bash
# Makes a Debian 12 or 13 machine ready to build, test and run Cairn: packages, a Go
# toolchain, the container runtime and CRIU. Run it as root. What is there already is
# left alone; with nothing to do it takes a moment and does not use the network.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

packages=(
	ca-certificates curl git jq make     # tools
	gcc libc6-dev pkg-config             # runc's start-up code; the race detector
	libseccomp-dev                       # runc
	mmdebstrap                           # images, CRIU
	containernetworking-plugins iptables # sandbox networks (in /usr/lib/cni)
	xfsprogs                             # pools with project quotas and reflinks
	docker-registry python3 sqlite3      # tests
)

# missing PACKAGE...: those that are not installed.
missing() {
	local package installed
	# dpkg-query fails when it does not know one of them.
	installed=$({ dpkg-query -W -f '${db:Status-Abbrev}${Package}\n' "$@" 2>/dev/null || true; } |
		sed -n 's/^.i *//p')
	for package in "$@"; do
		grep -qx "$package" <<<"$installed" || echo "$package"
	done
}

install_packages() {
	local want
	mapfile -t want < <(missing "${packages[@]}")
	# sid, where CRIU comes from, and trixie, which images are made of, are signed by keys
	# that the first releases of Debian 12 lack.
	[ -e /usr/share/keyrings/debian-archive-trixie-automatic.gpg ] ||
		want+=(debian-archive-keyring)
	[ ${#want[@]} -gt 0 ] || return 0
	need_root "installing packages"
	say "installing ${want[*]}"
	apt_get update
	apt_get install "${want[@]}"
	# Only the registry's binary is used, by tests; Debian starts it as a service.
	if [[ " ${want[*]} " == *" docker-registry "* ]] && command -v systemctl >/dev/null; then
		systemctl --quiet disable docker-registry 2>/dev/null || true
		if [ -d /run/systemd/system ]; then
			systemctl stop docker-registry
		fi
	fi
}

# go_version: the running toolchain's, without what go.mod selects; empty if there is none.
go_version() {
	command -v go >/dev/null || return 0
	(cd / && GOTOOLCHAIN=local go env GOVERSION) | sed 's/^go//; s/[ -].*//'
}

at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -1)" = "$1" ]; }

# Go 1.21 and later fetch the toolchain that go.mod asks for by themselves, as a module.
install_go() {
	local have want
	want=$(sed -n 's/^go //p' "$ROOT/go.mod")
	have=$(go_version)
	if [ -z "$have" ] || ! at_least 1.21 "$have"; then
		need_root "installing Go"
		# Not in a subshell: the release's names are wanted.
		# shellcheck disable=SC1091
		. /etc/os-release
		local from=()
		if [ "${VERSION_CODENAME:-}" = bookworm ]; then
			# Debian 12's own Go is 1.19.
			printf 'deb %s bookworm-backports main\n' \
				"${DEBIAN_MIRROR:-http://deb.debian.org/debian}" \
				>/etc/apt/sources.list.d/bookworm-backports-cairn.list
			from=(-t bookworm-backports)
		fi
		say "installing Go"
		apt_get update
		apt_get install "${from[@]}" golang-go
		hash -r
		have=$(go_version)
	fi
	if ! at_least "$want" "$have"; then
		say "Go $have: fetching $want"
		# Debian's golang, like some others, is set not to switch by default.
		export GOTOOLCHAIN=auto
		(cd "$ROOT" && go version >/dev/null) ||
			die "Go $want is needed, there is $have, and fetching it failed (GOTOOLCHAIN, GOPROXY?)"
	fi
}

[ -e /etc/debian_version ] || die "this script knows Debian 12 and 13 only; the README lists what is needed"
install_packages
install_go
"$ROOT/scripts/runtime/build.sh"
"$ROOT/scripts/criu/bundle.sh"
