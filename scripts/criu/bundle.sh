#!/usr/bin/env bash
# Puts CRIU with its loader and its libraries into bin/criu, all in one directory, so that
# it runs in any sandbox, whatever that has installed:
#
#	ld.so --library-path DIR DIR/criu
#
# It comes from the host if that has a new enough one, else from Debian's packages, without
# installing them. 4.3 is the first version that dumps inotify watches on overlayfs.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

least=4.3
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
out=$ROOT/bin/criu

hash=$(hash_of "$ROOT/scripts/criu/bundle.sh" -- "$(uname -m)")
if stamp_ok criu "$hash" "$out/criu" "$out/ld.so" "$out/libc.so.6"; then
	exit
fi
need_root "fetching CRIU"

mkdir -p "$ROOT/bin"
tmp=$(mktemp -d "$ROOT/bin/.criu.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
# Readable by the users that a sandbox's ids map to.
chmod 755 "$tmp"

# bundle SYSROOT CRIU OUT: copies CRIU and what it is linked with from a root file system.
bundle() {
	local root=$1 criu=$2 dir=$3 loader libs path
	loader=$(readelf -l "$criu" | sed -n 's/.*program interpreter: \(.*\)\]/\1/p')
	[ -n "$loader" ] || return 1
	# The loader's own directory may be a link that only resolves inside the root.
	loader=$(find "$root/usr/lib" "$root/usr/lib64" "$root/lib" -name "${loader##*/}" \
		-print -quit 2>/dev/null)
	libs=$(dirname "$loader")/$(uname -m)-linux-gnu
	[ -d "$libs" ] || libs=$(dirname "$loader")
	mkdir -p "$dir"
	cp -L "$criu" "$dir/criu"
	cp -L "$loader" "$dir/ld.so"
	# The loader answers which libraries are needed; it reads the bundle's root only.
	"$loader" --library-path "$libs" --list "$criu" |
		awk '$2 == "=>" && $1 !~ "^/" { print $3 }' >"$tmp/libs"
	while read -r path; do
		[ -e "$path" ] || return 1
		cp -L "$path" "$dir/"
	done <"$tmp/libs"
	chmod 755 "$dir" "$dir/criu" "$dir/ld.so"
}

version() { "$1/ld.so" --library-path "$1" "$1/criu" --version | sed -n 's/^Version: //p'; }

# new_enough VERSION
new_enough() { [ -n "$1" ] && [ "$(printf '%s\n' "$least" "$1" | sort -V | head -1)" = "$least" ]; }

if host=$(command -v criu) && new_enough "$("$host" --version | sed -n 's/^Version: //p')" &&
	bundle / "$host" "$tmp/criu" && new_enough "$(version "$tmp/criu")"; then
	say "CRIU: the host's own"
else
	say "CRIU: fetching Debian's package"
	rm -rf "$tmp/criu"
	# A mirror's snapshot of sid may be older than its release file says is valid.
	mmdebstrap --quiet --variant=extract --include=criu \
		--aptopt='Acquire::Check-Valid-Until "false"' \
		--aptopt='APT::Default-Release "experimental"' \
		--aptopt='Acquire::Retries "3"' \
		sid "$tmp/root" "deb $mirror sid main" "deb $mirror experimental main" \
		2>"$tmp/log" || { cat "$tmp/log" >&2 && die "cannot fetch CRIU from $mirror"; }
	bundle "$tmp/root" "$tmp/root/usr/sbin/criu" "$tmp/criu" || die "CRIU's package lacks a library"
fi

got=$(version "$tmp/criu")
new_enough "$got" || die "CRIU is ${got:-broken}, need $least"
rm -rf "$out"
mv "$tmp/criu" "$out"
# What the kernel can do is the daemon's to judge; here it is only told.
say "CRIU $got: $("$out/ld.so" --library-path "$out" "$out/criu" check 2>&1 | tail -1)"
stamp criu "$hash"
