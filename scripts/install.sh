#!/usr/bin/env bash
# Installs what is in bin/ on this host, with a systemd unit, or removes it again.
#
#	install.sh [--prefix DIR] [--destdir DIR] [--uninstall]
#
#	PREFIX/bin             cairnd, cairn
#	PREFIX/libexec/cairn   cairn-init, cairn-criu, containerd, its shim, runc, criu/
#	/etc/cairn/cairn.toml  the configuration, if there is none
#	/etc/systemd/system    cairnd.service
#
# PREFIX is /usr/local. With --destdir, all goes below that directory and the running
# system is left alone. The unit is neither enabled nor started. Removing leaves the
# configuration, the group and /var/lib/cairn.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

prefix=/usr/local
destdir=
uninstall=

usage() { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "$0"; }

while [ $# -gt 0 ]; do
	case $1 in
	--prefix | --destdir)
		[ $# -ge 2 ] || die "$1 needs a directory"
		case $2 in /*) ;; *) die "$1: $2 is not an absolute path" ;; esac
		if [ "$1" = --prefix ]; then prefix=${2%/}; else destdir=${2%/}; fi
		shift
		;;
	--uninstall) uninstall=1 ;;
	-h | --help)
		usage
		exit
		;;
	*)
		usage >&2
		die "unknown argument $1"
		;;
	esac
	shift
done

bin=$destdir$prefix/bin
libexec=$destdir$prefix/libexec/cairn
etc=$destdir/etc/cairn
units=$destdir/etc/systemd/system
programs=(cairnd cairn)
helpers=(cairn-init cairn-criu containerd containerd-shim-runc-v2 runc)

# on_host COMMAND...: runs it, unless this is not for the running system.
on_host() { [ -n "$destdir" ] || "$@"; }
has_systemd() { [ -d /run/systemd/system ]; }

if [ -n "$uninstall" ]; then
	on_host need_root "uninstalling"
	if [ -z "$destdir" ] && has_systemd; then
		systemctl disable --now cairnd.service 2>/dev/null || true
	fi
	for f in "${programs[@]}"; do rm -f "$bin/$f"; done
	rm -rf "$libexec"
	rm -f "$units/cairnd.service"
	if [ -z "$destdir" ] && has_systemd; then
		systemctl daemon-reload
	fi
	say "removed; left: $etc, the group cairn, /var/lib/cairn"
	exit
fi

on_host need_root "installing"
for f in "${programs[@]}" "${helpers[@]}" criu/criu; do
	[ -x "$ROOT/bin/$f" ] || die "no bin/$f: run make setup build"
done

# put MODE FROM TO: by rename, so that a running program keeps its own file.
put() {
	install -D -m "$1" "$2" "$3.new"
	mv -f "$3.new" "$3"
}

for f in "${programs[@]}"; do put 755 "$ROOT/bin/$f" "$bin/$f"; done
for f in "${helpers[@]}"; do put 755 "$ROOT/bin/$f" "$libexec/$f"; done
for f in "$ROOT"/bin/criu/*; do
	put "$(stat -c %a "$f")" "$f" "$libexec/criu/${f##*/}"
done
[ -e "$etc/cairn.toml" ] || put 644 "$ROOT/scripts/systemd/cairn.toml" "$etc/cairn.toml"

unit=$(mktemp)
trap 'rm -f "$unit"' EXIT
sed "s|@PREFIX@|$prefix|g; s|@SYSCONFDIR@|/etc/cairn|g" \
	"$ROOT/scripts/systemd/cairnd.service" >"$unit"
put 644 "$unit" "$units/cairnd.service"

if [ -z "$destdir" ]; then
	getent group cairn >/dev/null || groupadd --system cairn
	if has_systemd; then
		systemctl daemon-reload
		say "installed; start it with: systemctl enable --now cairnd"
		exit
	fi
fi
say "installed below ${destdir:-/}"
