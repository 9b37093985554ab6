#!/usr/bin/env bash
# imece train on several ranks: the losses of one rank, other layouts on resume, kill -9, refusals.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export GOMP_SPINCOUNT=3000

for i in $(seq 400); do echo "line $i of a text that is not very surprising, $((i * i)) words long."; done > "$T/text"
"$IMECE" data build "$T/text" --split lines --out "$T/d" >"$T/out" 2>"$T/err" || { fail data "$(cat "$T/err")"; finish; exit; }
model="$IMECE_SOURCE/models/llama-bytes-tiny.json"
tiny=(--model "$model" --data "$T/d-train" --seq-len 16 --micro-batch 2 --global-batch 5 --threads 1 --lr 1e-3)
watched=(--valid "$T/d-valid" --eval-every 3 --eval-batches 0)

losses() { grep -o '"loss": [0-9.e+-]*' "$1/metrics.jsonl" | cut -d' ' -f2; }

# near A B: as many losses (of steps and evaluations), each within 1e-5
near() {
    [ "$(losses "$1" | wc -l)" = "$(losses "$2" | wc -l)" ] && [ -n "$(losses "$1")" ] &&
        paste <(losses "$1") <(losses "$2") | awk '{ d = $1 - $2; if (d < 0) d = -d; if (!(d <= 1e-5 * $1)) { print "line " NR ": " $0; bad = 1 } } END { exit bad }'
}

same_weights() { # A B: checkpoint directories
    cmp "$1/model.safetensors" "$2/model.safetensors" && cmp "$1/optimizer.safetensors" "$2/optimizer.safetensors"
}

expect one-rank 0 'done +6 steps' -- "$IMECE" train "${tiny[@]}" "${watched[@]}" --steps 6 --out "$T/one"
layouts=("--tp 2 --dp 2 --zero 1 --sequence-parallel" "--dp 3 --zero 3" "--tp 2 --pp 2 --recompute full" "--tp 4 --recompute selective" "--dp 2 --zero 2 --device deferred --kernels plain")
for i in "${!layouts[@]}"; do
    read -ra layout <<<"${layouts[$i]}"
    # B27: rank 0 tells the loss, whichever stage has it
    expect "layout ${layouts[$i]}" 0 'done +6 steps' '^loss +[1-9][.0-9]+ -> [1-9]' 'ranks in this process, each of 1 thread' 'rank [0-9], the largest' -- \
        "$IMECE" train "${tiny[@]}" "${watched[@]}" --steps 6 "${layout[@]}" --out "$T/l$i"
    check "losses ${layouts[$i]}" near "$T/one" "$T/l$i"
    expect "checkpoint ${layouts[$i]}" 0 'whole' -- "$IMECE" checkpoint verify "$T/l$i"
done
check layout-in-plan-yaml grep -Eq '^  zero: 1' "$T/l0/plan.yaml"
check layout-logs test "$(grep -c 'info\|validation loss' "$T/l0/logs/rank-0.log")" = 3
expect layout-dry-run 0 'tp 2 x dp 2 x pp 1, ZeRO 1, sequence parallel' -- "$IMECE" train --config "$T/l0/plan.yaml" --out "$T/dry" --dry-run
check layout-dry-run-writes-nothing test ! -e "$T/dry"

# one checkpoint, other layouts: the losses of the run that went on in one
expect resume-one 0 'done +3 steps' -- "$IMECE" train --resume "$T/one" --steps 9
for to in "--tp 1 --dp 3 --zero 3 --no-sequence-parallel" "--tp 1 --dp 1 --zero 0 --no-sequence-parallel" "--tp 4 --pp 2 --dp 1 --zero 0"; do
    rm -rf "$T/to"
    cp -r "$T/l0" "$T/to"
    read -ra layout <<<"$to"
    expect "resume $to" 0 'right, but not bit-equal' 'done +3 steps' -- "$IMECE" train --resume "$T/to" --steps 9 "${layout[@]}"
    check "resumed $to" near "$T/one" "$T/to"
done
expect_not resume-same-layout 0 'not bit-equal' -- "$IMECE" train --resume "$T/l0" --steps 9
check resume-same-layout-losses near "$T/one" "$T/l0"

# killed at any moment: goes on with the same bits
killed=(--model "$model" --data "$T/d-train" --seq-len 16 --micro-batch 2 --global-batch 4 --threads 1 --tp 2 --save-every 5)
expect tp-alone 0 'done +60 steps' -- "$IMECE" train "${killed[@]}" --steps 60 --out "$T/alone"
"$IMECE" train "${killed[@]}" --steps 60 --out "$T/k" >"$T/out" 2>"$T/err" &
pid=$!
for _ in $(seq 6000); do grep -qs 'step-[0-9]' "$T/k/checkpoints/latest" && break; kill -0 $pid 2>/dev/null || break; sleep 0.02; done
kill -KILL $pid
wait $pid 2>/dev/null
expect tp-resume 0 'resumed' -- "$IMECE" train --resume "$T/k"
check tp-resume-same-bits same_weights "$T/alone/checkpoints/step-60" "$T/k/checkpoints/step-60"
check tp-resume-lines test "$(losses "$T/k" | wc -l)" = 60

# a signal: saved by all ranks, exit code 4
"$IMECE" train "${killed[@]}" --steps 100000 --dp 2 --zero 1 --out "$T/s" >"$T/out" 2>"$T/err" &
pid=$!
for _ in $(seq 6000); do [ -s "$T/s/metrics.jsonl" ] && break; kill -0 $pid 2>/dev/null || break; sleep 0.02; done
kill -TERM $pid
wait $pid
code=$?
if [ $code = 4 ] && grep -q -- "--resume $T/s" "$T/err"; then ok layout-sigterm; else fail layout-sigterm "exit code $code" "$(cat "$T/err")"; fi
expect layout-sigterm-whole 0 'whole' -- "$IMECE" checkpoint verify "$T/s"

# values that are not finite: the same decision everywhere
expect nonfinite-stop 1 'not finite, first in .*on rank [0-9]' -- "$IMECE" train "${tiny[@]}" --lr 1e6 --clip 0 --schedule constant --weight-decay 1000 --tp 2 --dp 2 --steps 20 --out "$T/n1"
expect cp-refused 2 'cp 2: context parallelism is in the plan, but not built yet; cp 1; layouts of 2 ranks: dp 2, tp 2, pp 2$' -- "$IMECE" train "${tiny[@]}" --steps 1 --cp 2 --out "$T/cp"
check cp-writes-nothing test ! -e "$T/cp"
expect nonfinite-skip 1 'left out: not finite.*on rank [0-9]' 'warn 0 train step' '20 steps in a row' 'Lower --lr or --clip, or raise --eps$' -- "$IMECE" -q train "${tiny[@]}" --lr 1e6 --clip 0 --schedule constant --weight-decay 1000 --pp 2 --steps 40 --nonfinite skip --out "$T/n2"

# an id beyond the vocabulary is told before a rank starts (ranks that fail in the middle: tests/fault)
cp "$T/d-train.bin" "$T/bad.bin"
cp "$T/d-train.idx" "$T/bad.idx"
printf '\377\377' | dd of="$T/bad.bin" bs=1 seek=$((2 * 16 * 35)) conv=notrunc 2>/dev/null
expect rank-data 1 'bad.bin: holds the id 65535' -- "$IMECE" train --model "$model" --data "$T/bad" --order sequential --seq-len 16 --micro-batch 10 --global-batch 40 --threads 1 --dp 4 --steps 3 --out "$T/f"

# evaluation: one rank's loss on any layout, told once; a batch that nothing divides
loss_of() { sed 's/.*"loss": \([0-9.]*\),.*/\1/' "$1"; }
evaluate=("$IMECE" eval --model "$T/alone" --data "$T/d-train" --seq-len 16 --batch 3 --batches 5 --threads 1 --json)
expect eval-alone 0 '^\{"loss": [0-9.]+.*"tokens": 240, .*"memory": \[\{"rank": 0, "predicted": \{"weights": [0-9]+' -- "${evaluate[@]}"
alone=$(loss_of "$T/out")
for layout in "--tp 2" "--pp 2" "--dp 2" "--dp 3 --pp 2" "--tp 2 --pp 2 --dp 2"; do
    # shellcheck disable=SC2086
    expect "eval $layout" 0 '"tokens": 240, .*\{"rank": 1,' -- "${evaluate[@]}" $layout
    check "eval $layout: the loss of one rank" awk -v a="$alone" -v b="$(loss_of "$T/out")" 'BEGIN { d = a - b; exit !(a > 0 && d < 1e-5 * a && -d < 1e-5 * a) }'
    check "eval $layout: told once" test "$(wc -l <"$T/out")" = 1
done
expect eval-refuse-tp 2 'tp 3 .*nearest: 2, 4; no layout of 3|tp 3 .*layouts of 3 ranks: dp 3' -- "${evaluate[@]}" --tp 3
expect eval-refuse-pp 2 'pp 5 stages.*4 blocks.*layouts of 5 ranks: ' -- "${evaluate[@]}" --pp 5

# refusals: before anything is written, with what would work
refuse() {
    local name=$1 regex=$2
    shift 2
    expect "$name" 2 "$regex" -- "$IMECE" train "${tiny[@]}" --steps 1 --out "$T/refused" "$@"
    check "$name-writes-nothing" test ! -e "$T/refused"
}
refuse refuse-tp 'tp 3 .*nearest: 2, 4' --tp 3
refuse refuse-pp 'pp 5 stages.*4 blocks' --pp 5
refuse refuse-dp 'global-batch 2.*dp 3' --dp 3 --global-batch 2
refuse refuse-zero 'from 0 to 3' --zero 4
refuse refuse-recompute 'none.*selective.*full' --recompute some
refuse refuse-sequence-parallel 'tp 2 or more' --sequence-parallel
refuse refuse-ranks 'at most 64' --dp 100
finish
