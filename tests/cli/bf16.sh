#!/usr/bin/env bash
# bf16 learns as fp32 does: 200 steps of the demo's model with both, on a text that does not change: the licenses that every Debian has (base-files).
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

find /usr/share/common-licenses -type f | LC_ALL=C sort | xargs cat > "$T/text"
"$IMECE" data build "$T/text" --split blank --out "$T/d" >"$T/out" 2>"$T/err" || { fail data "$(cat "$T/err")"; finish; exit; }
if [ "$IMECE_SANITIZE" = thread ]; then # half an hour of plain matrix products on one rank
    skip curve "the thread sanitizer's build"
    finish
    exit
fi
steps=200
case $IMECE_SANITIZE in ?*) steps=40 ;; esac # the sanitizers are slow; the bound is the same
for precision in fp32 bf16; do
    expect "train-$precision" 0 "done +$steps steps" -- "$IMECE" train --model llama-bytes-tiny --data "$T/d-train" --seq-len 128 --micro-batch 8 \
        --steps $steps --lr 1e-3 --warmup 20 --seed 5 --precision $precision --out "$T/$precision"
    sed -n 's/.*"step": *\([0-9]*\).*"loss": *\([0-9.]*\).*/\1 \2/p' "$T/$precision/metrics.jsonl" > "$T/$precision.loss"
    check "lines-$precision" test "$(wc -l < "$T/$precision.loss")" = $steps
done

# The curve, as means of 5 steps, within 1 %, and it has really come down. A single step may part by more (here one of 200 by 1.5 %: the two runs are at other
# weights by then, and this text repeats itself); on the demo's text the worst single step differs by 0.06 %.
paste "$T/fp32.loss" "$T/bf16.loss" | awk '
    { a[NR] = $2; b[NR] = $4; if (NR == 1) first = $2; last = $2; if ($2 != $4) differ++
      d = ($2 - $4) / $2; if (d < 0) d = -d; if (d > single) single = d }
    END { for (i = 5; i <= NR; i++) {
              x = a[i] + a[i - 1] + a[i - 2] + a[i - 3] + a[i - 4]; y = b[i] + b[i - 1] + b[i - 2] + b[i - 3] + b[i - 4]
              d = (x - y) / x; if (d < 0) d = -d; if (d > worst) { worst = d; at = i } }
          printf "worst %.4f at step %d, of a single step %.4f; %g -> %g; %d differ\n", worst, at, single, first, last, differ
          exit !(worst <= 0.01 && single <= 0.03 && last < 0.85 * first && differ > NR / 2) }' > "$T/curve" && ok curve || fail curve "$(cat "$T/curve")"
check stored-bytes test "$(stat -c %s "$T/bf16/checkpoints/step-$steps/model.safetensors")" -lt \
    "$(($(stat -c %s "$T/fp32/checkpoints/step-$steps/model.safetensors") * 6 / 10))"
cat "$T/curve"
finish
