# The examples, built against an installed library as docs/examples says, run on threads and under the launchers of MPI.
. "$(dirname "$0")/lib.sh"
if [ -n "$IMECE_SANITIZE" ]; then
    skip "installed library" "a sanitized build makes no shared library"
    finish
fi
P="$T/prefix"
check "cmake --install" cmake --install "$IMECE_BUILD" --prefix "$P" || finish
lib=$(dirname "$(find "$P" -name libimece.a)")
export PKG_CONFIG_PATH="$lib/pkgconfig" LD_LIBRARY_PATH="$lib" GOMP_SPINCOUNT=3000
flags=$(pkg-config --cflags --libs imece)
mkdir "$T/x"
build() { # SOURCE PROGRAM
    # shellcheck disable=SC2086
    ${CC:-cc} -std=gnu17 -Wall -Wextra -Werror -I"$P/share/doc/imece/examples" "$1" -o "$2" $flags -lm
}
for source in "$P"/share/doc/imece/examples/*.c; do
    name=$(basename "$source" .c)
    check "$name builds against the installed library" build "$source" "$T/x/$name"
    check "$name has a page that shows its command" grep -q "\./$name" "$IMECE_SOURCE/docs/examples/$name.md"
done
cp "$P/share/doc/imece/examples/zero_table1.csv" "$T/x"
cd "$T/x" || exit 1

same='tolerance 1e-05'
printf 'the quick brown fox jumps over the lazy dog\n%.0s' $(seq 400) >text.txt
expect "train" 0 'validation: [0-9.]+ bits per byte over [1-9]' -- ./train text.txt run 8
expect "column_linear" 0 'rank 3: outputs 1536 to 2048; weight \(512,1024\)' "gradient of the weight.*$same" -- ./column_linear 4
expect "column_linear: 2048 over 3" 0 'rank 2: outputs 1366 to 2048; weight \(682,1024\)' "gradient of x.*$same" -- ./column_linear 3
expect "row_linear" 0 'rank 2: inputs 1366 to 2048; x \(32,2048\), of it \(32,682\)' "y, sum \+ bias once.*$same" -- ./row_linear 3
expect "mlp: tp 1 to 8" 0 'tp 8: +47.8 MB of weights on a rank, +12.5 % of the whole, as predicted' 'one all-reduce each, of 442368 bytes' -- ./mlp 8
expect "zero" 0 '^54 published figures, 54 of them' 'ZeRO 3 .*saved 75.0 %' -- ./zero zero_table1.csv zero-threads 4
expect "accumulate" 0 "sums, divided once.*$same" 'another gradient' -- ./accumulate 3
expect "barrier" 0 'not arrived: rank 3; arrived: rank 0-2' 'every rank was told that rank 3 had not come' -- ./barrier 4

# a comparison that fails is said, and is the exit code
sed 's/TOLERANCE = 1e-5/TOLERANCE = 0/' "$P/share/doc/imece/examples/row_linear.c" >"$T/strict.c"
check "row_linear without a tolerance builds" build "$T/strict.c" strict
expect "an example that fails says what differs" 1 'rank 0: y = x W\^T \+ b: \|a-b\|/\|b\| is .*, above 0' -- ./strict 4
sed 's/formula(stage, dp, 2, 2, 12) \* billions/formula(stage, dp, 2, 4, 12) * billions/' "$P/share/doc/imece/examples/zero.c" >"$T/wrong.c"
check "zero with another formula builds" build "$T/wrong.c" wrong
expect "zero sees figures that differ" 1 'figures differ from the formula' -- ./wrong zero_table1.csv zero-wrong 2

for mpi in openmpi mpich; do
    if [ ! -e "$lib/imece/imece_$mpi.so" ]; then
        skip "$mpi" "no plug-in in this build"
        continue
    fi
    start=("mpirun.$mpi")
    [ $mpi = openmpi ] && start+=(--allow-run-as-root --oversubscribe --bind-to none)
    on() { timeout -k 5 120 "${start[@]}" -n "$@"; }
    expect "$mpi: column_linear" 0 'rank 2: outputs 1366 to 2048' "gradient of the bias.*$same" -- on 3 ./column_linear
    expect "$mpi: row_linear" 0 "y, sum \+ bias once.*$same" -- on 2 ./row_linear
    expect "$mpi: mlp" 0 'tp 3: ' "gradient of down.*$same" 'one all-reduce each, of 44160 bytes' -- on 3 ./mlp 3 345 1382
    expect "$mpi: zero" 0 'ZeRO 3 .*saved 66.7 %' -- on 3 ./zero zero_table1.csv zero-$mpi
    check "$mpi: zero is told once" test "$(grep -c 'ZeRO 3 .*saved' "$T/out")" = 1
    expect "$mpi: accumulate" 0 "sums, divided once.*$same" -- on 2 ./accumulate
    on 3 ./barrier >"$T/out" 2>"$T/err" # a job with a rank that fails: Open MPI's launcher says so with its exit code
    check "$mpi: barrier names the rank" sh -c "cat '$T/out'; grep -q 'every rank was told that rank 2 had not come' '$T/out'"
done
finish
