#!/bin/bash
# check-trixie.sh [MAKE ARGUMENT...]: `make check` (or `make` with the arguments) on Debian 13 (oneDNN 3, another gcc and another jansson), in a chroot. Needs root and
# about 2 GB in $TRIXIE (default /var/tmp/imece-trixie). It makes the chroot with debootstrap when it is not there, copies
# the tracked and new files of this tree into it, and runs make inside. The chroot stays for the next time.
#   SUITE=NAME  another Debian: SUITE=bookworm is Debian 12
#   MIRROR=URL  where Debian's packages come from; default: the first mirror that this machine's apt uses
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
suite=${SUITE:-trixie}
root=${TRIXIE:-/var/tmp/imece-$suite}
if [ "$(id -u)" != 0 ]; then
    echo "check-trixie: debootstrap and chroot need root" >&2
    exit 1
fi
mirror=${MIRROR:-$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null |
    sed -nE 's/^URIs: *([^ ]+).*/\1/p; s/^deb +(\[[^]]*\] +)?([^ ]+).*/\2/p' | grep -v security | head -1 || true)}
mirror=${mirror:-http://deb.debian.org/debian}

cleanup() {
    umount "$root/proc" 2>/dev/null || true
    umount -R "$root/sys" 2>/dev/null || true
    umount "$root/dev" 2>/dev/null || true
}
trap cleanup EXIT

if [ ! -e "$root/.complete" ]; then
    echo "check-trixie: making a chroot of Debian $suite in $root"
    rm -rf --one-file-system "$root"
    mkdir -p "$root"
    if ! debootstrap --variant=minbase "$suite" "$root" "$mirror" >"$root.log" 2>&1; then
        tail -20 "$root.log" >&2
        echo "check-trixie: debootstrap failed; its log is $root.log" >&2
        exit 1
    fi
    touch "$root/.complete"
fi
# how this machine's apt reaches its mirrors
for file in /etc/apt/apt.conf.d/*; do
    if grep -q '^ *Acquire' "$file"; then cp "$file" "$root/etc/apt/apt.conf.d/"; fi
done
cp -L /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
cleanup
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys" && mount --make-rslave "$root/sys"
mount --bind /dev "$root/dev"

echo "check-trixie: copying the tree"
mkdir -p "$root/src/imece"
find "$root/src/imece" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} + # what was built stays
(cd "$source" && git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' f; do if [ -e "$f" ]; then printf '%s\0' "$f"; fi; done |
    tar --null -T - -c) | tar -x -C "$root/src/imece"
[ $# -gt 0 ] || set -- check
echo "check-trixie: make $* on $(. "$root/etc/os-release"; echo "$PRETTY_NAME")"
chroot "$root" /bin/sh -c 'command -v make >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends make; } >/dev/null'
chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM="${TERM:-dumb}" LC_ALL=C.UTF-8 make -C /src/imece "$@"
