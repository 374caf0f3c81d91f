#!/bin/bash
# qsd.sh [options] IMAGE SOCKET
#
# Serves IMAGE (a raw file, or null:SIZE) as a vhost-user-blk disk with the peer, qemu-storage-daemon,
# in the foreground: its process ID is this script's.
#   -a ENGINE  threads, native or io_uring (default io_uring)    -c on|off   O_DIRECT (default on)
#   -i         a thread of its own for the I/O                   -p NS       that polls for NS
#   -n N       queues (default 2)                                -r          read only
#   -f PIDFILE written when the socket is there
# Debian has it in qemu-system-common.
set -euo pipefail
engine=io_uring direct=on iothread= poll= queues=2 writable=on pidfile=
while getopts a:c:ip:n:rf: o; do
    case $o in
        a) engine=$OPTARG ;; c) direct=$OPTARG ;; i) iothread=1 ;; p) poll=$OPTARG ;;
        n) queues=$OPTARG ;; r) writable=off ;; f) pidfile=$OPTARG ;; *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# = 2 ] || { sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2; }
read_only=on; [ $writable = off ] || read_only=off
case $1 in
    null:*) disk="driver=null-co,node-name=d0,read-zeroes=off,size=$(numfmt --from=iec "${1#null:}")" ;;
    *) disk="driver=raw,node-name=d0,read-only=$read_only,discard=unmap,file.driver=file,file.filename=$1,file.aio=$engine,cache.direct=$direct,file.cache.direct=$direct,file.discard=unmap" ;;
esac
export="type=vhost-user-blk,id=e0,node-name=d0,addr.type=unix,addr.path=$2,writable=$writable,num-queues=$queues"
args=()
if [ -n "$iothread" ]; then args+=(--object "iothread,id=t0${poll:+,poll-max-ns=$poll}"); export+=",iothread=t0"; fi
rm -f "$2"
exec qemu-storage-daemon "${args[@]}" --blockdev "$disk" --export "$export" ${pidfile:+--pidfile "$pidfile"}
