#!/usr/bin/env bash
# What a pipeline leaves to look at: trace.json of all ranks, pipeline.svg; kernels that sleep their planned time.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export GOMP_SPINCOUNT=3000

for i in $(seq 200); do echo "line $i of a text that is not very surprising, $((i * i)) words long."; done >"$T/text"
"$IMECE" data build "$T/text" --split lines --out "$T/d" >"$T/out" 2>"$T/err" || { fail data "$(cat "$T/err")"; finish; exit; }
tiny=(--model "$IMECE_SOURCE/models/llama-bytes-tiny.json" --data "$T/d-train" --seq-len 16 --micro-batch 2 --global-batch 8 --threads 1)

# trace NAME RANKS INSTRUCTION... -- FLAG...: an evaluation after the last step is in neither picture
trace() {
    local name=$1 ranks=$2 words=()
    shift 2
    while [ "$1" != -- ]; do words+=(--instruction "$1"); shift; done
    shift
    expect "trace of $name" 0 'bubble planned' -- "$IMECE" train "${tiny[@]}" --valid "$T/d-valid" --eval-batches 5 --steps 7 --trace --out "$T/$name" "$@"
    expect "trace of $name is sound" 0 '[1-9][0-9]* arrows, 5 steps' -- python3 "$IMECE_SOURCE/tests/cli/check_trace.py" "$T/$name/trace.json" --ranks "$ranks" \
        --steps 5 "${words[@]}"
    check "picture of $name has all ranks twice" test "$(grep -c ">rank $((ranks - 1))</text>" "$T/$name/pipeline.svg")" = 2
    check "picture of $name has what was measured" grep -Eq 'measured, the last step: ([1-9]|0\.[0-9]*[1-9])[.0-9]* (us|ms|s) a step' "$T/$name/pipeline.svg"
}
trace 1f1b 2 FORWARD BACKWARD SEND RECV UPDATE -- --pp 2
trace tp 4 FORWARD BACKWARD SEND RECV -- --pp 2 --tp 2 --sequence-parallel
trace zb-h1 2 FORWARD BACKWARD_INPUT BACKWARD_WEIGHT SEND RECV -- --pp 2 --pipeline zb-h1
trace chunks 4 FORWARD BACKWARD SEND RECV REDUCE GATHER -- --pp 2 --dp 2 --zero 1 --pipeline interleaved --chunks 2

# a fault is found: an arrow without its end, a slice that ends in another
sed '0,/"ph": "f"/s//"ph": "M"/' "$T/1f1b/trace.json" >"$T/broken.json"
expect trace-broken-arrow 1 'one end only' -- python3 "$IMECE_SOURCE/tests/cli/check_trace.py" "$T/broken.json" --ranks 2
sed '/"name": "matmul"/s/"dur": [0-9.]*/"dur": 5000000.0/' "$T/1f1b/trace.json" >"$T/broken.json"
expect trace-broken-row 1 'overlap' -- python3 "$IMECE_SOURCE/tests/cli/check_trace.py" "$T/broken.json" --ranks 2

# paced: no value is computed, and nothing pretends that there is one
paced=(--kernels paced --pace-flops 1e10 --pace-bytes 1e10)
expect paced 0 'paced +10 GFLOP/s and 10 GB/s a rank.*compute nothing' 'bubble planned .* measured' 'done +3 steps' -- \
    "$IMECE" train "${tiny[@]}" "${paced[@]}" --steps 3 --pp 2 --json --out "$T/paced"
expect_not paced-no-loss 0 'loss +[0-9n]|checkpoint' -- "$IMECE" train "${tiny[@]}" "${paced[@]}" --steps 1 --pp 4 --out "$T/paced-2"
check paced-json python3 -c 'import json, sys; d = [json.loads(line) for line in open(sys.argv[1]) if "step_s" in line]; assert len(d) == 3 and all(x["loss"] is None and x["grad_norm"] is None for x in d), d' "$T/paced/metrics.jsonl"
check paced-saves-nothing sh -c "! ls $T/paced/checkpoints | grep -q step"
expect paced-measured 0 'GFLOP/s and .*GB/s a rank' 'done +1 steps' -- "$IMECE" train "${tiny[@]}" --kernels paced --steps 1 --out "$T/paced-3"
for with in "--save-every 1" "--valid $T/d-valid" "--valid-share 0.1" "--resume $T/1f1b"; do
    read -ra flags <<<"$with"
    base=("${tiny[@]}" --steps 1 --out "$T/no")
    [ "${flags[0]}" = --resume ] && base=()
    expect "paced ${flags[0]}" 2 "${flags[0]} with --kernels paced: nothing is computed" -- "$IMECE" train "${base[@]}" "${paced[@]}" "${flags[@]}"
done
expect paced-resumed 0 'has no checkpoint yet; it starts from the beginning' -- "$IMECE" train --resume "$T/paced" --kernels fast --steps 4
expect pace-alone 2 'pace-flops is of --kernels paced' -- "$IMECE" train "${tiny[@]}" --steps 1 --pace-flops 1e9 --out "$T/no"
expect pace-negative 2 'pace-flops' -- "$IMECE" train "${tiny[@]}" --steps 1 --kernels paced --pace-flops -1 --out "$T/no"
finish
