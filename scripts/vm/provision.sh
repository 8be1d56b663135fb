#!/usr/bin/env bash
# Makes a virtual machine ready: run as root in a clone of the project, on Debian 13
# (Linux 6.12). The Vagrantfile calls it; any other way to a VM serves as well.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh

need_root "provisioning"
least=6.7 # the first kernel that mounts overlays as Cairn needs it
have=$(uname -r)
[ "$(printf '%s\n' "$least" "${have%%-*}" | sort -V | head -1)" = "$least" ] ||
	die "Linux $have is too old: $least or newer is needed"

command -v make >/dev/null || { apt_get update && apt_get install make; }
make setup build images
say "ready; scripts/vm/check.sh runs the tests and the demonstration"
