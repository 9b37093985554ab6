# Sourced by every tests/cli/*.sh. A case prints one line: "ok NAME", "FAIL NAME" (with what was seen) or
# "SKIP NAME: reason". $IMECE is the program, $T a directory that goes away, $IMECE_SOURCE the source tree.
#
#   expect NAME CODE REGEX [REGEX...] -- COMMAND...    exit code, and each extended regex somewhere in stdout or stderr
#   expect_not NAME CODE REGEX -- COMMAND...           the same with a regex that must not be there
#   check NAME COMMAND...                              COMMAND must succeed
#   skip NAME REASON
#   by_rank COMMAND... : COMMAND...                    job=(...): what follows mpirun, for two ranks of which each has its command
#   finish                                             last line of each script: its exit status
#
# After expect, $T/out and $T/err hold what the command said and $code its exit code.
set -u
IMECE=${IMECE:-build/imece}
IMECE_SOURCE=${IMECE_SOURCE:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
IMECE_BUILD=${IMECE_BUILD:-$(dirname "$IMECE")}
IMECE_SANITIZE=${IMECE_SANITIZE:-}
T=$(mktemp -d "${TMPDIR:-/tmp}/imece-cli-XXXXXX")
trap 'rm -rf "$T"' EXIT
export NO_COLOR=1 LC_ALL=C.UTF-8
failures=0

ok() { echo "ok $1"; }

fail() {
    echo "FAIL $1"
    shift
    printf '    %s\n' "$@"
    failures=$((failures + 1))
}

skip() { echo "SKIP $1: $2"; }

# Runs a command with its output in $T/out and $T/err, and sets $code.
run() {
    "$@" >"$T/out" 2>"$T/err" </dev/null
    code=$?
}

show() { sed "s/^/    $1| /" "$T/$1" | head -40; }

# by_rank COMMAND... : COMMAND...: sets job to mpirun's arguments for two ranks, each with a command of its own. (The mpirun of Open MPI 5.0.7 ends with a
# segmentation fault on `-n 1 A : -n 1 B`.)
by_rank() {
    local first=
    while [ "$1" != : ]; do first="$first $(printf %q "$1")"; shift; done
    shift
    {
        echo "case \${OMPI_COMM_WORLD_RANK:-\$PMI_RANK} in 0) exec$first ;; esac"
        echo "exec$(printf ' %q' "$@")"
    } >"$T/by-rank"
    job=(-n 2 bash "$T/by-rank")
}

expect() {
    local name=$1 want=$2 regex
    shift 2
    local -a regexes=()
    while [ $# -gt 0 ] && [ "$1" != -- ]; do regexes+=("$1"); shift; done
    shift
    run "$@"
    if [ "$code" != "$want" ]; then
        fail "$name" "exit code $code, not $want: $*"
        show out
        show err
        return 1
    fi
    for regex in "${regexes[@]}"; do
        if ! cat "$T/out" "$T/err" | grep -Eq -- "$regex"; then
            fail "$name" "no /$regex/ in what it said: $*"
            show out
            show err
            return 1
        fi
    done
    ok "$name"
}

expect_not() {
    local name=$1 want=$2 regex=$3
    shift 4
    run "$@"
    if [ "$code" != "$want" ]; then
        fail "$name" "exit code $code, not $want: $*"
        show out
        show err
        return 1
    fi
    if cat "$T/out" "$T/err" | grep -Eq -- "$regex"; then
        fail "$name" "/$regex/ in what it said: $*"
        show out
        show err
        return 1
    fi
    ok "$name"
}

check() {
    local name=$1
    shift
    if "$@" >"$T/check.log" 2>&1; then
        ok "$name"
    else
        fail "$name" "failed: $*"
        sed 's/^/    | /' "$T/check.log" | tail -40
        return 1
    fi
}

finish() {
    [ "$failures" = 0 ]
    exit
}
