#!/bin/sh
# deps.sh GROUP...: installs the Debian packages of tools/deps.txt that are missing. As root, or through sudo;
# without either it says what to install, and fails. Nothing is asked of the network when nothing is missing.
set -eu
list=$(dirname "$0")/deps.txt
missing=
for group in "$@"; do
    for package in $(sed -n "s/^$group  *//p" "$list"); do
        state=$(dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null || true)
        case $state in
        installed*) ;;
        *) # a name that another package provides (pkg-config by pkgconf) counts too
            dpkg-query -W -f '${db:Status-Status} ${Provides}\n' 2>/dev/null | grep -Eq "^installed .*\b$package\b" || missing="$missing $package" ;;
        esac
    done
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ]; then
    sudo=
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    sudo="sudo -n"
elif command -v sudo >/dev/null 2>&1 && [ -t 0 ]; then
    sudo=sudo
else
    echo "deps: these packages are missing, and only root can install them:" >&2
    echo "    apt-get install$missing" >&2
    exit 1
fi
echo "deps: installing$missing"
# another apt-get may be at work: its lock is waited for, five minutes at most
apt() {
    tries=60
    until $sudo env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" >"$log" 2>&1; do
        grep -q "Could not get lock" "$log" && [ $tries -gt 0 ] || return 1
        [ $tries -lt 60 ] || echo "deps: waiting for another apt-get"
        tries=$((tries - 1))
        sleep 5
    done
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# package lists may be missing or old on a fresh machine
# shellcheck disable=SC2086
if ! { apt update && apt install -y --no-install-recommends $missing; }; then
    cat "$log" >&2
    echo "deps: apt-get could not install$missing" >&2
    exit 1
fi
