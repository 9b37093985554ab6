#!/usr/bin/env bash
# imece plan: the best layout of a model on a cluster, what is refused and why, and that the plan it writes runs as it is.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
case $IMECE in /*) ;; *) IMECE=$PWD/$IMECE ;; esac
export GOMP_SPINCOUNT=3000
cd "$T" || exit 1
plan="$IMECE plan"
big=(--model gpt3-175b --cluster selene --devices 1024 --global-batch 1536 --seq-len 2048)
mid=(--model llama2-7b --cluster selene --devices 64 --global-batch 128 --seq-len 2048 --fix tp=1 --fix recompute=none --top 3 --out '' --json)
cat >own.yaml <<END
name: own
nodes: 1
devices_per_node: 4
device: {name: d, peak: {fp32: 50 GFLOP/s}, memory: 1 GB, memory_rate: 10 GB/s, power: 100 W}
domain: {devices: 4, rate: 4 GB/s, latency: 10 us}
price: {device_hour: 0.1 USD}
END
tiny=(--model llama-bytes-tiny --cluster own.yaml --global-batch 6 --seq-len 16)

expect "175B on 1,024 devices" 0 '^gpt3-175b on 1024 of 4480 devices of Selene.*1536 sequences of 2048 tokens, bf16: [0-9]{6} layouts' '^ +1 +[0-9.]+ s' \
    '^ +10 .*tp [0-9]+ x pp' 'heads: a tp' 'tied: ZeRO 2 or 3' 'memory; the nearest needs .* too much: tp' 'worse than those above' \
    '^assumed +precision bf16' 'device.launch: assumed' '^written +plan.yaml: number [0-9]+' -- $plan "${big[@]}"
check "its plan" grep -Eq '^  model: "gpt3-175b"' plan.yaml
expect "its plan is priced" 0 '^1024 of 4480 devices' -- "$IMECE" simulate plan.yaml --cluster selene --micro-batch 1 --global-batch 64
expect "json" 0 '"winner": [0-9]' -- $plan "${mid[@]}"
check "json says what it should" python3 -c '
import json
d = json.load(open("out"))
p = d["plans"]
assert len(p) >= 3 and all(x["tp"] == 1 and x["tp"] * x["pp"] * x["dp"] == 64 for x in p), p
assert all(x["memory_bytes"] <= d["room_bytes"] for x in p) and p[d["winner"]]["runnable"] and d["refused"]["memory"] > 0 and d["assumed"]
assert d["nearest"]["memory_bytes"] > d["room_bytes"]'
cp out one
$plan "${mid[@]}" >two
check "twice the same" cmp one two

# the plan that is written runs as it is
for i in $(seq 200); do echo "line $i of a text that is not very surprising, $((i * i)) words long."; done >text
"$IMECE" data build text --split lines --out d >o 2>e || fail data "$(cat e)"
i=0
for fix in "" "pp=2" "dp=2 zero=3" "pp=2 pipeline=interleaved" "tp=2 sequence-parallel=true" "recompute=full pp=4 stages=even"; do
    fixes=()
    for f in $fix; do fixes+=(--fix "$f"); done
    i=$((i + 1))
    expect "plan ${fix:-of any kind}" 0 '^written +plan.yaml: number' -- $plan "${tiny[@]}" "${fixes[@]}" --data d-train --top 3
    expect "runs: ${fix:-of any kind}" 0 'done +2 steps' -- "$IMECE" train plan.yaml --steps 2 --threads 1 --out "run$i"
done
expect "stages" 0 'done +2 steps' -- "$IMECE" train plan.yaml --steps 2 --threads 1 --stages 1,1,1,1 --out given

expect "objective memory" 0 '"plans": ' -- $plan "${tiny[@]}" --objective memory --out '' --json
check "less memory than the fastest" python3 -c '
import json, subprocess, sys
least = json.load(open("out"))["plans"][0]["memory_bytes"]
fast = json.loads(subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, check=True).stdout)["plans"][0]["memory_bytes"]
assert least < fast, (least, fast)' $plan "${tiny[@]}" --out '' --json
expect "objective cost takes fewer devices" 0 'USD a step' -- $plan "${tiny[@]}" --objective cost --out ''
echo "# of somebody else" >mine.yaml
expect "a file of another kind stays" 2 'mine.yaml is there, and not from imece plan' -- "$IMECE" plan --model gpt2 --cluster h100 --devices 2 --global-batch 4 \
    --seq-len 64 --out mine.yaml
check "a file of another kind is as it was" grep -qx '# of somebody else' mine.yaml
for again in 1 2; do
    expect "a plan is written over by the next ($again)" 0 'written +over.yaml' -- "$IMECE" plan --model gpt2 --cluster h100 --devices 2 --global-batch 4 \
        --seq-len 64 --out over.yaml
done
expect "no such count of devices" 3 'no tp x pp x dp of 13 devices is allowed' '^fits with +12 devices: then tp' -- "$IMECE" plan --model gpt2 --cluster h100 \
    --devices 13 --global-batch 4 --seq-len 64
expect "what is fixed has more" 3 '^fits with +10 devices: then tp 5 x pp 1 x dp 2' -- "$IMECE" plan --model gpt2 --cluster h100 --devices 7 \
    --fix tp=5 --fix dp=2 --global-batch 8 --seq-len 64
expect "nothing fits" 3 'no layout fits' 'memory; the nearest needs .* too much' '^fits with +--fix [a-z-]+ left out: then' '[0-9]+ devices, dp as they allow: then' -- \
    $plan --model llama2-7b --cluster h100 --devices 8 --global-batch 8 --seq-len 4096 --fix tp=1 --fix dp=8 --fix zero=0 --out none.yaml
check "no plan then" test ! -e none.yaml
expect "two clusters" 0 'the clusters compared' '^\* DGX .* devices' 'written +plan.yaml: number .* on ' -- \
    $plan --model llama2-7b --cluster a100-80 --cluster h100 --devices 8 --global-batch 8 --seq-len 1024 --top 1 --fix pp=1
expect "cannot run here" 0 'runnable: no \(family' -- $plan --model palm-540b --cluster gb200-nvl72 --devices 192 --global-batch 64 --seq-len 2048 --top 2 --out ''
expect "no model" 2 '--model: which one' -- $plan --cluster h100
expect "no cluster" 2 '--cluster: which machines' -- $plan --model gpt2
expect "no batch" 2 '--global-batch: how many' -- $plan --model gpt2 --cluster h100
expect "a part that there is not" 2 'fix zerro: there is no such part of a layout; nearest: zero' -- $plan "${tiny[@]}" --fix zerro=1
expect "a value that there is not" 2 'fix pipeline=fast: one of gpipe' -- $plan "${tiny[@]}" --fix pipeline=fast
expect "too many devices" 2 '--devices 9: own has 4' -- $plan "${tiny[@]}" --devices 9
expect "too long" 2 'beyond the model' -- $plan --model gpt2 --cluster h100 --global-batch 8 --seq-len 100000

layout=(--model llama3-8b --tp 4 --pp 2 --dp 8 --global-batch 64 --micro-batch 2 --seq-len 4096 --precision bf16)
expect "export to Megatron" 0 '^--tensor-model-parallel-size 4$' '^--num-query-groups 8$' '^--sequence-parallel$' '^--use-distributed-optimizer$' '^--swiglu$' \
    '^--num-layers-per-virtual-pipeline-stage 4$' '^--global-batch-size 64$' '^--untie-embeddings' 'rotary scaling|rotary-base 500000' -- \
    $plan export "${layout[@]}" --zero 1 --sequence-parallel --pipeline interleaved --chunks 4
expect "what Megatron cannot say" 0 'the schedule is not one' 'is ZeRO 1' 'not a multiple of micro-batch' 'not a multiple of the stages' -- \
    $plan export "${layout[@]}" --zero 3 --pipeline zb-h1 --global-batch 60 --pp 3
expect "export to DeepSpeed" 0 'tp is not part' 'pp is not part' -- $plan export "${layout[@]}" --zero 1 --to deepspeed --out ds.json
check "its sizes" python3 -c '
import json
d = json.load(open("ds.json"))
assert d["train_batch_size"] == d["train_micro_batch_size_per_gpu"] * d["gradient_accumulation_steps"] * 8 == 64 and d["zero_optimization"]["stage"] == 1'
finish
