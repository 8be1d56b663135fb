#!/usr/bin/env bash
# What to run in a provisioned virtual machine, as root: the tests, the demonstration, and
# an installation of the service that must start and answer.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh

need_root "checking"
make test
make demo
[ -d /run/systemd/system ] || die "no systemd: the service was not checked"
scripts/install.sh
systemctl restart cairnd
systemctl is-active --quiet cairnd
cairn ps
systemctl stop cairnd
scripts/install.sh --uninstall
say "all is well"
