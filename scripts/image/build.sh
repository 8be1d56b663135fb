#!/usr/bin/env bash
# Builds a small Debian image: a root file system as a tar.
#
#	build.sh demo OUT.tar   Python, git and SQLite
#	build.sh tiny OUT.tar   a shell and the usual small tools, for tests
#	build.sh workloads OUT.tar   servers, interpreters and compilers, for the tests of process checkpoints
#
# An image is built again when this script changes.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

[ $# = 2 ] || die "usage: build.sh demo|tiny|workloads OUT.tar"
name=$1
out=$(realpath -m "$2")
suite=trixie
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

hash=$(hash_of "$ROOT/scripts/image/build.sh" -- "$(uname -m)" "$out")
if stamp_ok "image-$name" "$hash" "$out"; then
	exit
fi
need_root "building an image"

mkdir -p "$(dirname "$out")"
tmp=$(mktemp -d "$(dirname "$out")/.image.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
root=$tmp/root

# debootstrap ARGUMENT...: a snapshot of a mirror may be older than its release file allows.
debootstrap() {
	mmdebstrap --quiet --format=directory \
		--aptopt='Acquire::Check-Valid-Until "false"' \
		--aptopt='Acquire::Retries "3"' \
		"$@" "$suite" "$root" "deb $mirror $suite main" 2>"$tmp/log" ||
		{ cat "$tmp/log" >&2 && die "cannot build image $name from $mirror"; }
}

# unpack PACKAGE...: what tiny has, and the packages. They are not installed: no package
# scripts run, so that their work is done here.
unpack() {
	local packages='base-files base-passwd bash coreutils dash diffutils findutils grep hostname libc-bin procps sed tar util-linux'
	debootstrap --variant=extract --include="$(tr ' ' , <<<"$packages $*")"
	cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
	cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
	mkdir -p "$root/root" "$root/proc" "$root/sys"
	chmod 700 "$root/root"
	[ -e "$root/usr/bin/sh" ] || ln -s dash "$root/usr/bin/sh"
	for dir in doc info locale lintian man bash-completion; do
		rm -rf "${root:?}/usr/share/$dir"
	done
	rm -rf "$root"/usr/lib/*/gconv "$root"/var/lib/dpkg "$root"/var/lib/apt "$root"/var/cache/apt
}

say "building image $name"
case $name in
demo)
	debootstrap --variant=minbase \
		--dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' \
		--dpkgopt='path-exclude=/usr/share/man/*' \
		--include=ca-certificates,git,procps,python3,sqlite3
	;;
tiny)
	unpack
	;;
workloads)
	unpack gcc git libc6-dev make mawk ncurses-base nginx-light nodejs openjdk-21-jre-headless postgresql-17 python3 redis-server sqlite3 tmux
	echo 'postgres:x:100:100::/var/lib/postgresql:/bin/sh' >>"$root/etc/passwd"
	echo 'postgres:x:100:' >>"$root/etc/group"
	# What is large and never run: compiling queries, linking-time optimization, sanitizers.
	rm -rf "$root"/usr/lib/*/libLLVM* "$root"/usr/lib/*/libz3* "$root"/usr/lib/postgresql/*/lib/{bitcode,llvmjit*} \
		"$root"/usr/libexec/gcc/*/*/lto* "$root"/usr/bin/*lto-dump* "$root"/usr/lib/*/lib{a,hwa,l,t,ub}san* \
		"$root"/usr/lib/gcc/*/*/lib{a,hwa,l,t,ub}san* "$root"/usr/share/i18n "$root"/usr/share/nodejs/corepack
	;;
*) die "no image $name: demo, tiny or workloads" ;;
esac

# The host's name, resolver and device nodes are not the image's.
rm -f "$root/etc/hostname" "$root/etc/resolv.conf"
find "$root/dev" -mindepth 1 -delete
chroot "$root" /bin/sh -c 'exit 0' || die "image $name does not run"

tar --create --file "$tmp/image.tar" --directory "$root" --sort=name --numeric-owner \
	--xattrs --xattrs-include='*' .
mv "$tmp/image.tar" "$out"
say "image $name: $(du -h "$out" | cut -f1) in $out"
stamp "image-$name" "$hash"
