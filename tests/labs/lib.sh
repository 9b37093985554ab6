# Sourced by the scripts beside it, which make check-slurm and check-net run: each brings machines up that are none, runs ranks
# among them, and takes them down again. A case prints one line, as in tests/cli; the last line counts them.
#
#   passes NAME RANKS -- COMMAND...      a job of one of the test programs: it ends well and each of its ranks passes
#   trains NAME DIR -- COMMAND...        a job of imece train into DIR: its losses are one rank's
#   check NAME COMMAND...                COMMAND must succeed
#   finish                               last line
#
# $BUILD is the build, $SOURCE the tree, $T a directory that goes away, ${tiny[@]} what all runs of imece train have in common.
set -u
SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
BUILD=$(cd "${IMECE_BUILD:-$SOURCE/build}" && pwd)
LIMIT=${LIMIT:-300} # seconds of a job
PATH=$PATH:/usr/sbin:/sbin
export NO_COLOR=1 LC_ALL=C.UTF-8 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
lab=$(basename "$0" .sh)
passed=0 failed=0 began=$SECONDS

if [ "$(id -u)" != 0 ]; then
    echo "check-$lab: namespaces, mounts and daemons of its own need root" >&2
    exit 1
fi
T=$(mktemp -d "/tmp/imece-$lab-XXXXXX") && chmod 755 "$T" || exit 1
trap 'jobs -p | xargs -r kill 2>/dev/null; down; rm -rf "$T"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

ok() { echo "ok $1 ($((SECONDS - since)) s)"; passed=$((passed + 1)); }

bad() {
    echo "FAIL $1: $2"
    tail -n 25 "$T/log" 2>/dev/null | sed 's/^/    | /'
    failed=$((failed + 1))
}

check() {
    local name=$1
    shift
    since=$SECONDS
    if "$@" >"$T/log" 2>&1; then ok "$name"; else bad "$name" "$*"; fi
}

# Runs a job with its output in $T/log, and sets $code.
job() {
    since=$SECONDS
    timeout -k 10 "$LIMIT" "$@" >"$T/log" 2>&1 </dev/null &
    wait $! # a signal to this script is heard at once
    code=$?
}

passes() {
    local name=$1 ranks=$2 got
    shift 3
    job "$@"
    got=$(grep -c 'PASS rank' "$T/log")
    if [ $code = 0 ] && [ "$got" = "$ranks" ]; then ok "$name"; else bad "$name" "exit code $code, $got of $ranks ranks passed"; fi
}

losses() { sed -n 's/.*"step": \([0-9]*\),.*"loss": \([0-9.e+-]*\), "grad_norm": \([0-9.e+-]*\),.*/\1 \2 \3/p' "$1/metrics.jsonl"; }

# The first step whose loss or gradient norm differs by more than 1e-5 of one rank's, or nothing.
difference() {
    paste -d ' ' <(losses "$T/one") <(losses "$1") | awk '
        function apart(a, b) { return (a > b ? a - b : b - a) > 1e-5 * (a > 0 ? a : -a) }
        NF != 6 || $1 != $4 || apart($2, $5) || apart($3, $6) { print; exit }
        END { if (!NR) print "no steps" }'
}

trains() {
    local name=$1 dir=$2 differs
    shift 3
    job "$@"
    if [ $code != 0 ]; then bad "$name" "exit code $code"; return; fi
    differs=$(difference "$dir" 2>&1)
    if [ -z "$differs" ]; then ok "$name"; else bad "$name" "loss and norm of one rank, and here: $differs"; fi
}

finish() {
    echo "check-$lab: $passed passed, $failed failed ($((SECONDS - began)) s)"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
    exit
}

# sshd for root with a key of this run, and an ssh that knows it, $T/bin/ssh: what two machines have
make_ssh() {
    mkdir -p "$T/ssh" "$T/bin" /run/sshd
    ssh-keygen -q -t ed25519 -N '' -f "$T/ssh/host" && ssh-keygen -q -t ed25519 -N '' -f "$T/ssh/id" ||
        { echo "check-$lab: no keys" >&2; return 1; }
    cp "$T/ssh/id.pub" "$T/ssh/authorized"
    cat >"$T/ssh/sshd.conf" <<C
HostKey $T/ssh/host
AuthorizedKeysFile $T/ssh/authorized
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
UsePAM no
PidFile none
C
    cat >"$T/ssh/config" <<C
IdentityFile $T/ssh/id
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
C
    printf '#!/bin/sh\nexec /usr/bin/ssh -F %s "$@"\n' "$T/ssh/config" >"$T/bin/ssh"
    chmod +x "$T/bin/ssh"
}

# Text, tokens and the run of one rank that all others are compared with.
for i in $(seq 300); do echo "line $i of a text that is not very surprising, $((i * i)) words long."; done >"$T/text"
tiny=(--model "$SOURCE/models/llama-bytes-tiny.json" --data "$T/d-train" --seq-len 16 --micro-batch 2 --global-batch 4 --threads 1 --steps 4)
{ "$BUILD/imece" data build "$T/text" --split lines --out "$T/d" && "$BUILD/imece" train "${tiny[@]}" --out "$T/one"; } >"$T/log" 2>&1 ||
    { cat "$T/log" >&2; echo "check-$lab: the run of one rank failed" >&2; exit 1; }
