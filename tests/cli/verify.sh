# imece verify: layouts that are right pass; each collective that is broken on purpose is found and named; bad layouts are refused.
. "$(dirname "$0")/lib.sh"
case $IMECE in /*) ;; *) IMECE=$PWD/$IMECE ;; esac
cd "$T" || exit 1
mkdir llama gpt2 deep
cat >llama/config.json <<'C'
{"model_type": "llama", "hidden_size": 28, "intermediate_size": 51, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3,
 "head_dim": 10, "vocab_size": 67, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
 "tie_word_embeddings": false}
C
cat >gpt2/config.json <<'C'
{"model_type": "gpt2", "n_embd": 30, "n_head": 5, "n_layer": 2, "vocab_size": 53, "n_positions": 40, "n_inner": 50,
 "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
C
sed 's/"num_hidden_layers": 2/"num_hidden_layers": 5/' llama/config.json >deep/config.json
v="$IMECE verify --seq-len 8"

expect "pairwise of 3 ranks" 0 'weights drawn' '^tp3.* same' '^dp3\+zero3.* same' '^pp2.* same' 'layouts compute what one rank computes' -- $v --model llama --ranks 3
expect "dropout, learned positions, a tied table; what cannot be is told" 0 'refused: dp2\+zero2\+pp2.*tied embeddings' '^tp2\+sp.* same' -- $v --model gpt2 --ranks 4
mkdir weights; cp "$IMECE_SOURCE"/tests/golden/llama-tied/config.json "$IMECE_SOURCE"/tests/golden/llama-tied/model.safetensors weights/
expect "weights are loaded" 0 'weights loaded' '^tp2\+sp\+mb2 .* same' -- $v --model weights --ranks 2 --layouts tp2+sp,dp2+zero3
seq 1 600 | awk '{printf "%d ", ($1 * 7) % 67} $1 % 50 == 0 {print ""}' >ids.txt
check "ids for --data" "$IMECE" data build ids.txt --ids --out corpus --valid-fraction 0
expect "--data" 0 '^dp2\+mb2 .* same' -- $v --model llama --data corpus-train --ranks 2 --layouts dp2
expect "--data with ids that the model does not have" 1 'vocabulary' -- $v --model gpt2 --data corpus-train --ranks 2 --layouts dp2

# kind, layout, what must be named
broken() {
    expect "break $1: $2" 3 '[1-9] of [0-9]+ layouts do not' "^${2//+/\\+}.* differs" "first difference: $3" -- $v --model llama --ranks 4 --layouts "$2" --break "$1"
}
for kind in scale missing doubled group; do
    broken $kind tp2 'FORWARD 0 \(embedding\), micro-batch 0'
    broken $kind dp2 'REDUCE 3 \(head\), (lm_head|model.norm)'
    broken $kind@2 tp2 'FORWARD 1 \(block 0\), micro-batch 0'
    broken $kind@2 dp2+zero2 'REDUCE 2 \(block 1\), model.layers.1'
    broken $kind@3 tp2+sp 'FORWARD 1 \(block 0\), micro-batch 0'
    broken $kind@3 dp2+zero1 'REDUCE 1 \(block 0\), model.layers.0'
done
broken stale dp2+zero1 'FORWARD 0 \(embedding\), micro-batch 0, step 3, after GATHER 0'
broken stale@2 dp2+zero2 'FORWARD 1 \(block 0\), micro-batch 0, step 3, after GATHER 1'
broken stale@2 dp2+zero3 'FORWARD 1 \(block 0\), micro-batch 0, step 2, after GATHER 1'
expect "the parameter and the element are told" 3 'differs  [a-z0-9._]+\.weight\[[0-9]+\]$' -- $v --model llama --ranks 2 --layouts dp2 --break scale
broken scale@2 dp2+zero1+pp2 'REDUCE 2 \(block 1\), model.layers.1'
broken missing@2:dp tp2+dp2+zero3+full 'REDUCE 2 \(block 1\), model.layers.1'
broken doubled:world dp2+zero3 'COUNT \(the loss\), step 1'
expect "what the fault does not fit is the same" 0 '^tp2.* same' 'nothing was broken' -- $v --model llama --ranks 2 --layouts tp2 --break stale

expect "every schedule" 0 '^pp2\+gpipe\+mb1 .* same' '^dp2\+pp2\+zb-h1\+full\+mb1 .* same' '^tp2\+sp\+pp2\+interleaved2\+mb1 .* same' \
    '^pp2\+1f1b\+mb1 .* same' -- $v --model deep --ranks 4 --micro-batch 1 --layouts pp2+gpipe,zb-h1+dp2+pp2+full,tp2+sp+pp2+interleaved,pp2
expect "pairwise has every schedule" 0 '^pp2\+gpipe.* same' 'interleaved2.* same' 'zb-h1.* same' 'refused: pp3\+interleaved2.*6 runs of blocks' -- \
    $v --model deep --ranks 3 --steps 1
broken_in() { # as broken, of the deeper model, a micro-batch of 1
    expect "break $1: $2" 3 "^${2//+/\\+}.* differs" "first difference: $3" -- $v --model deep --ranks 4 --micro-batch 1 --layouts "$2" --break "$1"
}
broken_in scale:dp dp2+pp2+gpipe 'REDUCE [0-6] \('
broken_in doubled:dp dp2+zero1+pp2+interleaved2 'REDUCE [0-6] \('
broken_in missing:tp tp2+pp2+zb-h1 'FORWARD 0 \(embedding\), micro-batch 0'
broken_in group@2:tp tp2+pp2+interleaved2 'FORWARD 1 \(block 0\), micro-batch 0'
broken_in stale:dp dp2+zero1+pp2+zb-h1 'FORWARD [0-6] \(.*, micro-batch 0, step [23], after GATHER'
broken_in missing:world pp2+gpipe 'COUNT \(the loss\), step 1'

expect "--json" 0 -- $v --model llama --ranks 2 --layouts tp2+sp,dp2+zero3 --json
check "--json parses" python3 - "$T/out" <<'P'
import json, sys
r = json.load(open(sys.argv[1]))
assert r["verdict"] == "same" and r["wrong"] == 0 and [x["layout"] for x in r["layouts"]] == ["tp2+sp+mb2", "dp2+zero3+mb2"], r
assert all(x["verdict"] == "same" and x["gradient"] <= 1e-5 and x["predicted_bytes"] > 0 for x in r["layouts"]), r
P
expect "--json of schedules" 0 -- $v --model deep --ranks 2 --layouts pp2+zb-h1,pp2+interleaved2,dp2 --steps 1 --json
check "--json of schedules parses" python3 - "$T/out" <<'P'
import json, sys
r = json.load(open(sys.argv[1]))
assert [(x["schedule"], x["chunks"]) for x in r["layouts"]] == [("zb-h1", 1), ("interleaved", 2), (None, 1)], r
P
expect "--json of a fault" 3 -- $v --model llama --ranks 2 --layouts tp2 --break missing --json
check "--json of a fault parses" python3 - "$T/out" <<'P'
import json, sys
r = json.load(open(sys.argv[1]))
assert r["verdict"] == "differs" and r["layouts"][0]["first_difference"].startswith("FORWARD 0"), r
P

expect "no model" 2 'which model' -- $v
expect "an unknown part" 2 '"tq2" in "tq2" is none of tpN' -- $v --model llama --layouts tq2
expect "a tp that the model cannot have" 2 'tp 4 is neither up to the 3 kv heads' -- $v --model llama --layouts tp4
expect "more ranks than given" 2 'has 4 ranks; from 1 to --ranks 2' -- $v --model llama --ranks 2 --layouts tp2+dp2
expect "sp alone" 2 'sequence parallelism.*tp2 or more' -- $v --model llama --layouts dp2+sp
expect "a schedule alone" 2 'gpipe is a schedule of pipeline stages; pp2 or more' -- $v --model deep --layouts dp2+gpipe
expect "chunks of another schedule" 2 '"zb-h12" in "pp2\+zb-h12" is none of .*interleavedN' -- $v --model deep --layouts pp2+zb-h12
expect "more chunks than blocks" 2 'pp 2 x chunks 3 = 6 runs of blocks.*at most 2 chunks' -- $v --model deep --layouts pp2+interleaved3
expect "two schedules" 2 'says twice' -- $v --model deep --layouts pp2+gpipe+1f1b
expect "ZeRO 2 with a pipeline and a tied table" 2 'tied embeddings' -- $v --model gpt2 --layouts dp2+zero2+pp2
expect "a sequence beyond the positions" 2 'seq-len 65 is beyond' -- "$IMECE" verify --model llama --seq-len 65
expect "an unknown fault" 2 'scale, missing, doubled, group or stale' -- $v --model llama --break upside
expect "a tolerance below what rounding changes" 0 "^tp2.* rounding" -- $v --model llama --ranks 2 --layouts tp2 --tolerance 1e-12
finish
