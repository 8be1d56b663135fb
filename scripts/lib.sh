# shellcheck shell=bash
# Shared by the set-up scripts: messages, the repository's root, and stamps.
#
# A stamp says which inputs an output was made from. It holds a hash of them, so a
# change of an input makes the output again, and nothing else does.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
STAMPS=$ROOT/bin/.stamps

say() { printf '%s\n' "== $*" >&2; }

die() {
	printf '%s\n' "error: $*" >&2
	exit 1
}

need_root() { [ "$(id -u)" = 0 ] || die "$1 must run as root"; }

# apt_get: apt-get that asks nothing and tells only of errors.
apt_get() {
	DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Dpkg::Use-Pty=0 \
		-o APT::Install-Recommends=false -o Acquire::Retries=3 "$@" </dev/null >/dev/null
}

# hash_of FILE... [-- WORD...]: one hash of the files' contents and the words.
hash_of() {
	local f
	{
		while [ $# -gt 0 ] && [ "$1" != -- ]; do
			f=$1
			sha256sum <"$f" || die "no file $f"
			shift
		done
		printf '%s\n' "$@"
	} | sha256sum | cut -d' ' -f1
}

# stamp_ok NAME HASH OUTPUT...: were the outputs made from these inputs, and are they there?
stamp_ok() {
	local name=$1 hash=$2 output
	shift 2
	[ "$(cat "$STAMPS/$name" 2>/dev/null)" = "$hash" ] || return 1
	for output in "$@"; do
		[ -e "$output" ] || return 1
	done
}

stamp() {
	mkdir -p "$STAMPS"
	printf '%s\n' "$2" >"$STAMPS/$1.new"
	mv "$STAMPS/$1.new" "$STAMPS/$1"
}
