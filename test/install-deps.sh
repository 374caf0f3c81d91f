#!/bin/bash
# install-deps.sh [-n]
#
# Installs the programs that the tests need, where apt-get is there and we are root; otherwise says
# what to install, and exits with status 1. Nothing is asked of the network when nothing is missing.
#   -n  install nothing: name the missing programs on standard output, status 1 if there are any
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin      # a plain user's PATH lacks e2fsck and blkdiscard on Debian

# program, Debian package, what for
table='
qemu-system-x86_64 qemu-system-x86 the real guest
busybox            busybox-static  the guest: small programs
dash               dash            the guest: its shell
cpio               cpio            the guest: its initramfs
mke2fs             e2fsprogs       the guest: mkfs.ext4
e2fsck             e2fsprogs       the guest and the host: is the file system whole?
blkdiscard         util-linux      the guest: discard, write zeroes
lz4                lz4             the guest: unpacking its kernel
zstd               zstd            the guest: unpacking its kernel
xz                 xz-utils        the guest: unpacking its modules
gcc                gcc             the guest: stand-ins for fio libraries; go test -race
readelf            binutils        the guest: stand-ins for fio libraries
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
