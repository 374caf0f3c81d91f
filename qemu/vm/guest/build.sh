#!/bin/bash
# build.sh
#
# Makes the guest of the tests and of elevisor-lab compare once, and prints the directory that holds it:
#   vmlinux or vmlinuz   a distribution's kernel: Debian's cloud kernel, downloaded and unpacked, never
#                        installed; where there is no apt-get, the kernel that this machine runs
#   base.cpio            initramfs: busybox, virtio and I/O scheduler modules, fio, e2fsprogs, blkdiscard
#
# The directory lies in ${XDG_CACHE_HOME:-~/.cache}/elevisor, so that clones and work trees share it,
# and is named by a hash of these scripts: a changed script makes a new guest. It is built beside its
# place and moved there when whole. No root needed. 10 s and 28 MB of download. The program carries
# these files and runs them from a directory of its own.
#
# Environment, to make another guest than the usual one:
#   CACHE    the directory to put it in
#   KPKG     kernel package or meta package (linux-image-cloud-amd64)
#   KERNEL   a kernel image and ...
#   MODULES  ... the directory of its modules (/lib/modules/VERSION), instead of a package
set -euo pipefail
export LC_ALL=C PATH=$PATH:/usr/sbin:/sbin
here=$(cd "$(dirname "$0")" && pwd)
KPKG=${KPKG:-linux-image-cloud-amd64} KERNEL=${KERNEL:-} MODULES=${MODULES:-}

die() { echo "build.sh: $*" >&2; exit 1; }
say() { echo "guest: $*" >&2; }

[ "$(uname -sm)" = "Linux x86_64" ] || die "the guest is made of this machine's programs, so it needs Linux on x86_64, not $(uname -sm)"
cache=${CACHE:-${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/elevisor}
mkdir -p "$cache" || die "no place for the guest: name a directory that can be written, by XDG_CACHE_HOME"
id=$({ cat "$here/build.sh" "$here/init" "$here/agent"; echo "$KPKG $KERNEL $MODULES"; } | sha256sum | cut -c1-12)
final=$cache/guest-$id

whole() { [ -s "$final/base.cpio" ] && { [ -s "$final/vmlinux" ] || [ -s "$final/vmlinuz" ]; }; }
if whole; then echo "$final"; exit 0; fi
missing=
while read -r program package what; do
    [ "$what" != 'the machine' ] || continue # which only runs the guest
    command -v "$program" > /dev/null || missing+=", $program (package $package)"
done < "$here/packages"
[ -z "$missing" ] || die "missing: ${missing#, }"

tmp=$(mktemp -d "$cache/building.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'echo "build.sh: line $LINENO: $BASH_COMMAND: failed" >&2' ERR
root=$tmp/root pkgs=$tmp/pkgs
mkdir -p "$pkgs" "$tmp/out" "$root"/{bin,dev,proc,sys,tmp,mnt,modules,etc,lib,lib64}

# ---- packages ---------------------------------------------------------------------------------------

# apt with lists of its own, when the machine's are empty (a fresh one) or out of date: needs no root
apt_options=()
own_lists() {
    [ ${#apt_options[@]} = 0 ] || return 1
    mkdir -p "$tmp/apt/lists/partial" "$tmp/apt/cache/archives/partial"
    apt_options=(-o "Dir::State::lists=$tmp/apt/lists" -o "Dir::Cache=$tmp/apt/cache" -o APT::Sandbox::User=)
    say "fetching package lists"
    apt-get "${apt_options[@]}" -qq update >&2
}
fetch() { # download one package and unpack it into $pkgs
    (cd "$tmp" && apt-get "${apt_options[@]}" -qq download "$1" > "$tmp/apt.log" 2>&1) || return 1
    mv "$tmp"/"$1"_*.deb "$tmp/package.deb"
    dpkg-deb -x "$tmp/package.deb" "$pkgs"
}
fetch_kernel() { # the meta package depends on the real one; newer releases split off the modules
    local real more
    real=$(apt-cache "${apt_options[@]}" show --no-all-versions "$KPKG" 2> "$tmp/apt.log" |
        sed -n 's/^Depends:.*\(linux-image-[0-9][^ ,]*\).*/\1/p' | sed -n 1p)
    say "downloading ${real:-$KPKG}"
    fetch "${real:-$KPKG}" || return 1
    for more in $(dpkg-deb -f "$tmp/package.deb" Depends | grep -oE 'linux-(binary|modules)-[0-9][^ ,]*'); do
        fetch "$more" || return 1
    done
}
fetch_fio() { # t64: the names since Debian 13
    local p
    say "downloading fio"
    for p in fio libnuma1 zlib1g libaio1; do
        fetch "$p" || fetch "${p}t64" || return 1
    done
}
from_apt() { "$1" || { own_lists && "$1"; } || die "$1: $(tail -3 "$tmp/apt.log")"; }

# ---- kernel -----------------------------------------------------------------------------------------

if [ -z "$KERNEL" ] && command -v apt-get > /dev/null; then
    from_apt fetch_kernel
    KERNEL=$(find "$pkgs/boot" -name 'vmlinuz-*' | sed -n 1p)
    MODULES=$(find "$pkgs" -type d -path '*/modules/[0-9]*' -prune | sed -n 1p)
elif [ -z "$KERNEL" ]; then
    MODULES=/lib/modules/$(uname -r)
    for KERNEL in "$MODULES/vmlinuz" "/boot/vmlinuz-$(uname -r)"; do [ ! -r "$KERNEL" ] || break; done
fi
[ -r "$KERNEL" ] && [ -d "$MODULES" ] || die "no kernel to boot (tried $KERNEL with modules in $MODULES): set KERNEL and MODULES"

# The bare ELF kernel boots by its PVH entry, which saves the unpacking inside the slow guest.
# Offsets: Documentation/x86/boot.rst, setup_sects, payload_offset, payload_length.
number() { od -An -tu"$2" -j"$1" -N"$2" "$KERNEL" | tr -d ' '; }
tail -c +$(( (1 + $(number 497 1)) * 512 + $(number 584 4) + 1 )) "$KERNEL" |
    head -c $(( $(number 588 4) - 4 )) > "$tmp/payload" || true
case $(od -An -tx1 -N4 "$tmp/payload" | tr -d ' ') in
    02214c18) lz4 -dqc "$tmp/payload" ;;
    28b52ffd) zstd -dqc "$tmp/payload" ;;
    fd377a58) xz -dc "$tmp/payload" ;;
    1f8b*)    gzip -dc "$tmp/payload" ;;
esac > "$tmp/out/vmlinux" || true
case $(od -An -tx1 -N4 "$tmp/out/vmlinux" | tr -d ' ') in
    7f454c46) ;;
    *) rm -f "$tmp/out/vmlinux"; cp "$KERNEL" "$tmp/out/vmlinuz" ;;
esac

# In load order; what is built in is not found here. mq-deadline comes before the disk, so that a disk
# with one queue takes it as its default, as with the kernels that have it built in.
n=10
for m in mq-deadline virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci \
         virtio_blk kyber-iosched bfq; do
    f=$(find "$MODULES/kernel" -name "$m.ko*" | sed -n 1p)
    [ -n "$f" ] || continue
    o=$root/modules/$n-$m.ko n=$((n + 1))
    case $f in
        *.xz)  xz -dc "$f" > "$o" ;;
        *.zst) zstd -qdc "$f" > "$o" ;;
        *.gz)  gzip -dc "$f" > "$o" ;;
        *)     cp "$f" "$o" ;;
    esac
done

# ---- programs ---------------------------------------------------------------------------------------

copy() { # a program, with the libraries it links
    cp -L "$(command -v "$1")" "$root/bin/"
    { ldd "$(command -v "$1")" 2> /dev/null || true; } | awk '$2 == "=>" && $3 ~ /^\// {print $3}' |
        while read -r l; do cp -L "$l" "$root/lib/"; done
}
copy busybox
copy dash           # runs the commands: busybox's shell would take its own mke2fs and blkdiscard
copy mke2fs; ln -s mke2fs "$root/bin/mkfs.ext4"
copy e2fsck
copy blkdiscard
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
install -m 755 "$here/init" "$root/init"
install -m 755 "$here/agent" "$root/agent"
: > "$root/etc/mtab"
# mke2fs sleeps for seconds over a type that is missing here
cat > "$root/etc/mke2fs.conf" <<'CONF'
[defaults]
	base_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr
	blocksize = 4096
	inode_size = 256
	inode_ratio = 16384
[fs_types]
	ext4 = {
		features = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize
	}
	small = {
		inode_ratio = 4096
	}
CONF

# ---- fio --------------------------------------------------------------------------------------------

# A distribution's fio links the clients of many storage systems, 80 MB of libraries which no test uses.
# Each gets an empty stand-in: same soname, same symbols, same versions.
fio=$(command -v fio || true)
[ -n "$fio" ] || { from_apt fetch_fio; fio=$pkgs/usr/bin/fio; }
cp -L "$fio" "$root/bin/fio"
stubs=
for so in $(readelf -dW "$fio" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p'); do
    case $so in
        libc.so.6 | libm.so.6 | libz.so.1 | libaio.so.1* | libnuma.so.1)
            lib=$(find "$pkgs" /lib64 /lib/x86_64-linux-gnu /usr/lib64 /usr/lib/x86_64-linux-gnu -maxdepth 5 -name "$so" 2> /dev/null | sed -n 1p)
            [ -n "$lib" ] || die "fio needs $so, which is not on this machine"
            cp -L "$lib" "$root/lib/" ;;
        *) stubs+=" $so" ;;
    esac
done
# the symbols that fio wants ("name version", "-" for none) and the real libraries have not
nm -D --undefined-only --with-symbol-versions "$fio" |
    awk '$1 == "U" {split($2, a, "@"); print a[1], a[2] == "" ? "-" : a[2]}' | grep -v ' GLIBC_' | sort > "$tmp/want"
nm -D --defined-only "$root"/lib/lib{z,aio,numa}.so* | awk 'NF == 3 {sub(/@.*/, "", $3); print $3}' | sort > "$tmp/have"
join -v1 "$tmp/want" "$tmp/have" > "$tmp/miss"
readelf -VW "$fio" | awk '/Version needs/ {on = 1} /File:/ {f = $5} on && /Name:/ {print f, $3}' > "$tmp/versions"
for so in $stubs; do
    : > "$tmp/stub.c"; : > "$tmp/stub.map"
    for v in $(awk -v so="$so" '$1 == so {print $2}' "$tmp/versions"); do
        awk -v v="$v" '$2 == v {print "int " $1 "(void) {return -1;}"}' "$tmp/miss" >> "$tmp/stub.c"
        echo "$v { global: $(awk -v v="$v" '$2 == v {printf "%s; ", $1}' "$tmp/miss") };" >> "$tmp/stub.map"
    done
    if [ ! -s "$tmp/stub.map" ]; then    # a library without versions gets all names without versions
        awk '$2 == "-" {print "int " $1 "(void) {return -1;}"}' "$tmp/miss" > "$tmp/stub.c"
        echo '{ global: *; };' > "$tmp/stub.map"
    fi
    gcc -shared -fPIC -nostdlib -fno-builtin -w -o "$root/lib/$so" "$tmp/stub.c" \
        -Wl,-soname,"$so" -Wl,--version-script="$tmp/stub.map"
done

# ---- done -------------------------------------------------------------------------------------------

(cd "$root" && find . | sort | cpio -o -H newc --quiet) > "$tmp/out/base.cpio"
chmod 755 "$tmp/out"
mv -T "$tmp/out" "$final" 2> /dev/null || whole || { rm -rf "$final"; mv -T "$tmp/out" "$final"; }
say "made $final"
echo "$final"
