#!/usr/bin/env bash
# imece simulate: a plan on machines that are not here; what is refused, with file, key and what would be right.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
case $IMECE in /*) ;; *) IMECE=$PWD/$IMECE ;; esac
cd "$T" || exit 1
sim="$IMECE simulate"
big=(--model gpt3-175b --tp 8 --pp 8 --dp 16 --seq-len 2048 --global-batch 1536 --precision bf16 --recompute selective --sequence-parallel)

expect "175B on 1,024 devices" 0 '^1024 of 4480 devices of Selene' 'tp 8 x pp 8 x dp 16, 1f1b, ZeRO 0, 96 micro-batches of 1 x 2048 tokens' \
    '^step +[0-9.]+ s, [0-9]+ tokens/s, MFU [0-9.]+ %, HFU' 'bubble [0-9.]+ %, tp [0-9.]+ %, dp' '^memory .* a rank of stage 0, of 72.6 GiB:' \
    'most activations at (BACKWARD|FORWARD|LOSS) [0-9]+ mb' 'the busiest: (nvswitch|network|leaf)' '^3e\+11 +tokens take [0-9.]+ days' \
    '^assumed .*attention is one kernel' 'device.launch: assumed' 'as a sum' 'GFLOP / \(312 TFLOP/s x 0\.[0-9]+\)' '\[dp\] .*ring Simple: .* us \+ .* GB/s' \
    'bubble: nothing to do' -- $sim "${big[@]}" --cluster selene --tokens 300e9 --explain --svg p.svg --trace p.json
check "its picture" grep -q '<svg' p.svg
check "its trace" python3 -c 'import json; d = json.load(open("p.json"))["traceEvents"]; assert len({e["pid"] for e in d}) == 8 and len(d) > 10000'
expect "json" 0 '"fits": true' -- $sim "${big[@]}" --cluster selene --json
check "a stage's parts are the step" python3 -c '
import json
d = json.load(open("out"))
for s in d["stages"]:
    t = s["compute_s"] + s["bubble_s"] + sum(s["exposed_s"].values())
    assert abs(t - d["step_s"]) < 1e-6 * d["step_s"], (t, d["step_s"])
assert all(l["use"] <= 1 for l in d["links"]) and d["mfu"] <= d["hfu"] < 1 and len(d["stages"]) == 8'
cp out one
$sim "${big[@]}" --cluster selene --json >two
check "twice the same" cmp one two
step() { $sim "${big[@]}" --cluster selene --json "$@" | python3 -c 'import json, sys; print(json.load(sys.stdin)["step_s"])'; }
check "overlap is of use" python3 -c 'import sys; a, b, c = map(float, sys.argv[1:]); assert a < b < c, (a, b, c)' "$(step)" "$(step --overlap dp)" "$(step --overlap none)"
expect "planning only" 0 'MFU' 'cannot run in this version' -- $sim --model palm-540b --tp 8 --pp 12 --dp 2 --seq-len 2048 --global-batch 64 --precision bf16 --cluster gb200-nvl72 --zero 1
expect "does not fit" 3 'does not fit: .* too much; .*ZeRO 1' -- $sim --model llama2-7b --dp 8 --global-batch 8 --seq-len 512 --precision bf16 --cluster a100-80
cat >own.yaml <<END
name: own
nodes: 2
devices_per_node: 1
device: {name: d, peak: {fp32: 1 TFLOP/s}, memory: 16 GB, memory_rate: 50 GB/s, power: 100 W}
network: {kind: tree, nics: 1, link: 10 Gb/s}
storage: {write: 1 GB/s}
price: {device_hour: 0.1 USD, kwh: 0.2 USD}
failures: {device_mtbf: 100 h}
END
expect "own cluster" 0 'network.reach: 1 \(not given\)' 'failures +one in 50.0 h; a checkpoint takes 1.49[0-9] s' 'USD' 'kWh' -- $sim --model gpt2 --dp 2 --cluster own.yaml
sed 's/16 GB/16/' own.yaml >bad.yaml
expect "no unit" 1 'bad.yaml: line 4: device.memory: "16" has no unit; write for example 80 GB' -- $sim --model gpt2 --dp 2 --cluster bad.yaml
expect "nearest" 2 'h10 is no cluster; did you mean h100\?' -- $sim --model gpt2 --cluster h10
expect "no cluster" 2 '--cluster: which machines' -- $sim --model gpt2
expect "too many ranks" 2 '3 ranks: own has 2 devices' -- $sim --model gpt2 --dp 3 --global-batch 9 --cluster own.yaml
expect "far too many ranks" 2 'dp 1048576 .*at most 4194304 ranks' -- $sim --model gpt2 --tp 12 --dp 1048576 --global-batch 1048576 --cluster own.yaml
expect "type it has not" 1 'own.yaml: device.peak.bf16: is missing' -- $sim --model gpt2 --precision bf16 --cluster own.yaml
expect "rules of plans" 2 'tp 13' -- $sim --model gpt2 --tp 13 --cluster h100
expect "bench machine" 0 -- "$IMECE" bench machine --ranks 2 --threads 1 --seconds 0.002 --max 64Ki --out m.yaml
expect "on this machine" 0 '^2 of 2 devices of measured: 1 x 2 ranks of 1 thread' 'the busiest: threads of one process' 'measured: 1' -- \
    $sim --model llama-bytes-tiny --dp 2 --cluster m.yaml --explain
check "nothing of it is assumed" test -z "$(sed -n 's/.*(not given).*/&/p' out | grep -v 'memory_reserved')"
expect "bench machine, one rank" 0 'library: ring' -- "$IMECE" bench machine --ranks 1 --threads 1 --seconds 0.002 --storage . --written 1Mi
finish
