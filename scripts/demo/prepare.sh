#!/usr/bin/env bash
# Makes the project that the demonstration works on: a tar with
#
#	networkx.git/   NetworkX, a graph library in Python of some 570 files with its tests, as
#	                a git repository: the releases of Debian 12 and 13, then a commit
#	                that breaks Dijkstra's algorithm
#	tools/          pytest and what it needs, to run the tests
#
#	prepare.sh OUT.tar
#
# All comes from Debian packages, which apt checks. It is made again when this script
# changes.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

[ $# = 1 ] || die "usage: prepare.sh OUT.tar"
out=$(realpath -m "$1")
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

hash=$(hash_of "$ROOT/scripts/demo/prepare.sh" -- "$out")
if stamp_ok demo-repo "$hash" "$out"; then
	exit
fi

say "preparing the project that the demonstration works on"
mkdir -p "$(dirname "$out")"
tmp=$(mktemp -d "$(dirname "$out")/.demo.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

# apt with lists of its own: the releases need not be the host's, nor the user root.
mkdir -p "$tmp"/{lists,cache/archives}/partial "$tmp"/deb
for suite in bookworm trixie; do
	printf 'deb [signed-by=%s] %s %s main\n' \
		/usr/share/keyrings/debian-archive-keyring.gpg "$mirror" "$suite"
done >"$tmp/sources.list"
apt=(apt-get -qq -o APT::Sandbox::User=root -o Acquire::Retries=3 -o Acquire::Languages=none
	-o Acquire::Check-Valid-Until=false # a snapshot of a mirror may be old
	-o Dir::Etc::SourceList="$tmp/sources.list" -o Dir::Etc::SourceParts=/dev/null
	-o Dir::State::Lists="$tmp/lists" -o Dir::Cache="$tmp/cache")
"${apt[@]}" update

# unpack PACKAGE/SUITE: into $tmp/PACKAGE-SUITE; prints its directory of Python modules.
unpack() {
	local dir=$tmp/${1/\//-}
	(cd "$tmp/deb" && "${apt[@]}" download "$1") >&2
	dpkg-deb --extract "$tmp/deb/${1%/*}_"*.deb "$dir"
	rm "$tmp/deb/"*.deb
	printf '%s\n' "$dir/usr/lib/python3/dist-packages"
}

repo=$tmp/repo
git() {
	GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null \
		GIT_AUTHOR_NAME=Demo GIT_AUTHOR_EMAIL=demo@example.org GIT_AUTHOR_DATE="$date" \
		GIT_COMMITTER_NAME=Demo GIT_COMMITTER_EMAIL=demo@example.org GIT_COMMITTER_DATE="$date" \
		command git -C "$repo" "$@"
}

# release SUITE: a commit of the release that the suite has.
release() {
	local modules version
	modules=$(unpack "python3-networkx/$1")
	version=$(cd "$modules" && echo networkx-*-info)
	version=${version#networkx-}
	version=${version%.*-info}
	rm -rf "$repo/networkx"
	cp -r "$modules/networkx" "$repo/"
	git add --all
	git commit --quiet --message "NetworkX $version"
	git tag "v$version"
}

mkdir "$repo"
date='2024-01-01T00:00:00Z'
git init --quiet --initial-branch main
release bookworm
date='2024-02-01T00:00:00Z'
release trixie

date='2024-03-01T00:00:00Z'
weighted=$repo/networkx/algorithms/shortest_paths/weighted.py
sed -i '/^def _dijkstra_multisource/,/^def / s/elif u not in seen or vu_dist < seen\[u\]:/elif u not in seen:/' "$weighted"
git diff --quiet && die "this release of NetworkX has another Dijkstra: $weighted"
git commit --quiet --all --message "Simplify Dijkstra's algorithm"

content=$tmp/content
mkdir -p "$content/tools"
git gc --quiet
command git clone --quiet --bare "$repo" "$content/networkx.git"
for package in pytest pluggy iniconfig packaging; do
	modules=$(unpack "python3-$package/trixie")
	cp -r "$modules/." "$content/tools/"
done

tar --create --file "$tmp/out.tar" --directory "$content" --sort=name --owner=0 --group=0 --numeric-owner .
mv "$tmp/out.tar" "$out"
say "$(du -h "$out" | cut -f1) in $out"
stamp demo-repo "$hash"
