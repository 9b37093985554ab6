#!/usr/bin/env bash
# docs/add-a-model.md: its code, as the page has it, is a family that works: built out of the tree and put before this build's objects, it is compared
# with Transformers in every number that the golden test compares, trained on two ranks, and verified under several layouts.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

S=$IMECE_SOURCE
CC=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$IMECE_BUILD/CMakeCache.txt")
objects=$(find "$IMECE_BUILD/CMakeFiles/imece.dir/src/cli" -name '*.o')
libs="$(sed -n 's/^Libs.private: //p' "$IMECE_BUILD/imece.pc") $(pkg-config --libs $(sed -n 's/^Requires.private: //p' "$IMECE_BUILD/imece.pc")) -ldl"
flags="-std=gnu17 -O1 -Wall -Wextra -Wshadow -Wmissing-prototypes -Werror -D_GNU_SOURCE -I$T/src -I$S/src -I$S/include -I$S/tests"
[ -z "$IMECE_SANITIZE" ] || flags="$flags -fsanitize=$IMECE_SANITIZE -fno-omit-frame-pointer"
grep -q '^IM_PLAIN:BOOL=ON' "$IMECE_BUILD/CMakeCache.txt" || flags="$flags -DIM_HAVE_DNNL=1 -DIM_HAVE_OPENMP=1"

# the two pieces of code, and the line where the page says it goes
mkdir -p "$T/src/model"
block() { awk -v want="$1" '/^```c$/ { n++; in_it = n == want; next } /^```$/ { in_it = 0 } in_it' "$S/docs/add-a-model.md"; }
block 1 >"$T/src/model/starcoder2.c"
block 2 >"$T/line"
cat "$S/src/model/families.h" "$T/line" >"$T/src/model/families.h"
check "the page has a file and a line" grep -qx 'IM_FAMILY(starcoder2)' "$T/line"
check "a table file is short" test "$(wc -l <"$T/src/model/starcoder2.c")" -lt 200
check "it is formatted as the tree" sh -c '! command -v clang-format >/dev/null || clang-format --style=file:"$1" -n --Werror "$2"' - "$S/.clang-format" \
    "$T/src/model/starcoder2.c"

build() { # OUT SOURCE... : with the family, before the objects of this build
    local out=$1
    shift
    "$CC" $flags "$@" "$S/src/model/model.c" "$T/src/model/starcoder2.c" "$IMECE_BUILD/libimece.a" $libs -o "$out"
}
run build "$T/imece" $objects
[ "$code" = 0 ] || { fail "it builds" "$(head -20 "$T/err")"; finish; exit; }
ok "it builds"
new=$T/imece

model=$S/tests/golden/starcoder2
expect "this build does not know it" 1 'model_type "starcoder2" is not implemented' -- "$IMECE" model show "$model"
expect "with the file it is known, and its files fit" 0 'family +starcoder2' 'the last 7 positions in all 2 blocks' 'files +[0-9]+ tensors' -- "$new" model show "$model"
sed 's/"use_bias": true/"use_bias": true, "qk_layernorm": true/' "$model/config.json" >"$T/config.json"
expect "keys of other families are refused" 1 'qk_layernorm is true: that is not implemented for model_type "starcoder2"' -- "$new" model show "$T/config.json"

# every number of the golden test
if pkg-config --exists cmocka; then
    cflags=$(pkg-config --cflags cmocka)
    run build "$T/golden" "-DIM_GOLDEN_MODEL=\"starcoder2\"" "-DIM_TEST_DIR=\"$S/tests\"" $cflags "$S/tests/golden/test_golden.c" $(pkg-config --libs cmocka)
    [ "$code" = 0 ] || fail "golden test builds" "$(head -20 "$T/err")"
    expect "loss, gradients, steps, logits, generation: as Transformers" 0 'PASSED +\] 1[0-9] test' -- "$T/golden"
fi

expect "layouts compute what one rank computes" 0 -- "$new" verify --model "$model/config.json" --layouts tp2+sp,tp2+dp2+zero3+full --steps 1 --seq-len 16
seq -f 'line %g' 60 >"$T/text"
sed 's/"vocab_size": 61/"vocab_size": 257/' "$model/config.json" >"$T/bytes.json"
"$new" data build "$T/text" --split lines --out "$T/d" >"$T/out" 2>"$T/err" || fail data "$(cat "$T/err")"
expect "two steps on two ranks" 0 'done' -- "$new" train --model "$T/bytes.json" --data "$T/d-train" --steps 2 --seq-len 16 --tp 2 --threads 1 --out "$T/run"
check "the checkpoint says what Transformers looks for" grep -q '"Starcoder2ForCausalLM"' "$T/run/checkpoints/step-2/config.json"
expect "it generates" 0 '' -- "$new" generate --model "$T/run" --prompt 'line' --max-tokens 4
finish
