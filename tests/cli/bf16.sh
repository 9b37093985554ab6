#!/usr/bin/env bash
# bf16 learns as fp32 does: 200 steps of the demo's model, on this project's own text, with both.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cat "$IMECE_SOURCE"/README.md "$IMECE_SOURCE"/README.tr.md "$IMECE_SOURCE"/docs/*.md "$IMECE_SOURCE"/src/plan/*.c > "$T/text"
"$IMECE" data build "$T/text" --split blank --out "$T/d" >"$T/out" 2>"$T/err" || { fail data "$(cat "$T/err")"; finish; exit; }
steps=200
case $IMECE_SANITIZE in ?*) steps=40 ;; esac # the sanitizers are slow; the bound is the same
for precision in fp32 bf16; do
    expect "train-$precision" 0 "done +$steps steps" -- "$IMECE" train --model llama-bytes-tiny --data "$T/d-train" --seq-len 128 --micro-batch 8 \
        --steps $steps --lr 1e-3 --warmup 20 --seed 5 --precision $precision --out "$T/$precision"
    sed -n 's/.*"step": *\([0-9]*\).*"loss": *\([0-9.]*\).*/\1 \2/p' "$T/$precision/metrics.jsonl" > "$T/$precision.loss"
    check "lines-$precision" test "$(wc -l < "$T/$precision.loss")" = $steps
done

# every loss within 1 %, and the curve has really come down
paste "$T/fp32.loss" "$T/bf16.loss" | awk '
    { d = ($2 - $4) / $2; if (d < 0) d = -d; if (d > worst) { worst = d; at = $1 } if (NR == 1) first = $2; last = $2; if ($2 != $4) differ++ }
    END { printf "worst %.4f at step %d; %g -> %g; %d differ\n", worst, at, first, last, differ
          exit !(worst <= 0.01 && last < 0.85 * first && differ > NR / 2) }' > "$T/curve" && ok curve || fail curve "$(cat "$T/curve")"
check stored-bytes test "$(stat -c %s "$T/bf16/checkpoints/step-$steps/model.safetensors")" -lt \
    "$(($(stat -c %s "$T/fp32/checkpoints/step-$steps/model.safetensors") * 6 / 10))"
cat "$T/curve"
finish
