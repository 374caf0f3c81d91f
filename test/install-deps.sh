#!/bin/bash
# install-deps.sh [-n]
#
# Installs the programs that the tests need, where apt-get is there and we are root; otherwise says
# what to install, and exits with status 1. Nothing is asked of the network when nothing is missing.
#   -n  install nothing: name the missing programs on standard output, status 1 if there are any
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin      # a plain user's PATH lacks e2fsck and blkdiscard on Debian

# program, Debian package, what for; those of the guest are in a table of the program's own
table=$(cat "$(dirname "$0")/../qemu/vm/guest/packages")'
strace             strace          counting system calls
iostat             sysstat         comparing statistics
fio                fio             the guest: load with verification; comparing JSON
qemu-storage-daemon qemu-system-common the peer
chromium           chromium        looking at a report of compare as a browser does
'

programs=() packages=()
while read -r program package _; do
    [ -n "$program" ] || continue
    command -v "$program" > /dev/null && continue
    programs+=("$program")
    [[ " ${packages[*]-} " == *" $package "* ]] || packages+=("$package")
done <<< "$table"
# gcc alone has no headers for cgo, which go test -race needs
if [ ! -e /usr/include/stdlib.h ]; then programs+=("C library headers"); packages+=(libc6-dev); fi

[ ${#programs[@]} -gt 0 ] || exit 0
list=$(printf '%s, ' "${programs[@]}"); list=${list%, }
if [ "${1:-}" = -n ]; then echo "$list"; exit 1; fi
echo "missing: $list" >&2

install="apt-get install -y --no-install-recommends ${packages[*]}"
if ! command -v apt-get > /dev/null; then
    echo "install these programs with your system's package manager" >&2
    exit 1
elif [ "$(id -u)" != 0 ]; then
    printf 'to install them, run:\n\n    sudo apt-get update && sudo %s\n\n' "$install" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
$install -qq < /dev/null
