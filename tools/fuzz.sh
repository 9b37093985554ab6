#!/bin/sh
# fuzz.sh BUILD SECONDS: every fuzz target for SECONDS. Findings stay in BUILD/found-NAME/.
set -eu
build=$1
seconds=$2
source=$(cd "$(dirname "$0")/.." && pwd)
status=0
targets=$(find "$build" -type f -perm -u+x -name 'fuzz_*' | sort)
[ -n "$targets" ] || { echo "fuzz: no targets in $build" >&2; exit 1; }
for target in $targets; do
    name=$(basename "$target" | sed 's/^fuzz_//')
    mkdir -p "$build/corpus-$name" "$build/found-$name"
    seeds=$source/tests/fuzz/corpus/$name
    [ -d "$seeds" ] || seeds=
    # shellcheck disable=SC2086
    if "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 -verbosity=0 \
        -artifact_prefix="$build/found-$name/" "$build/corpus-$name" $seeds >"$build/fuzz-$name.log" 2>&1; then
        echo "fuzz $name: nothing found in $seconds s ($(sed -n 's/.*number_of_executed_units: *//p' "$build/fuzz-$name.log") inputs)"
    else
        tail -40 "$build/fuzz-$name.log"
        echo "fuzz $name: FOUND something; its input is in $build/found-$name/"
        status=1
    fi
done
exit $status
