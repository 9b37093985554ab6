#!/usr/bin/env bash
# Every family from the command line, on the models of tests/golden: shown, continued greedily as Transformers does without a cache, trained on
# ranks from its files (in shards too), gone on in another layout, and its checkpoint continued.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# ids of a tensor of golden.safetensors, [row of 2 or 3 dims]: the first N of sample 0
ids() {
    python3 - "$1" "$2" "$3" <<'END'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", data[:8])[0]
t = json.loads(data[8:8 + n])[sys.argv[2]]
at = 8 + n + t["data_offsets"][0]
print(",".join(map(str, struct.unpack(f"<{sys.argv[3]}i", data[at:at + 4 * int(sys.argv[3])]))))
END
}

seq -f '%g little words' 40 >"$T/text"
"$IMECE" data build "$T/text" --split lines --out "$T/d" >"$T/out" 2>"$T/err" || { fail data "$(cat "$T/err")"; finish; exit; }

try() { # DIR LAYOUT OTHER-LAYOUT
    local name=$1 model=$IMECE_SOURCE/tests/golden/$1
    shift
    expect "$name: shown, and its files fit" 0 'files +[0-9]+ tensors.*all as the config says' -- "$IMECE" model show "$model"
    prompt=$(ids "$model/golden.safetensors" ids 9)
    want=$(ids "$model/golden.safetensors" greedy 6 | sed 's/,/, /g')
    expect "$name: the ids that Transformers continues with" 0 "\[$want\]" -- "$IMECE" generate --model "$model" --ids "$prompt" \
        --max-tokens 6 --temperature 0 --threads 1 --json
    # a vocabulary of bytes, weights drawn
    sed 's/"vocab_size": [0-9]*/"vocab_size": 257/' "$model/config.json" >"$T/$name.json"
    expect "$name: trained ($1)" 0 'done' -- "$IMECE" train --model "$T/$name.json" --data "$T/d-train" --seq-len 16 --micro-batch 1 --global-batch 2 \
        --threads 1 --steps 2 $1 --out "$T/$name"
    # the options of the other layout take the place of the first run's
    expect "$name: gone on ($2)" 0 'done' -- "$IMECE" train --resume "$T/$name" --steps 3 $2
    expect "$name: whole" 0 'whole' -- "$IMECE" checkpoint verify "$T/$name"
    expect "$name: continued" 0 '' -- "$IMECE" generate --model "$T/$name" --prompt 12 --max-tokens 3 --threads 1
}

try mistral-window "--tp 2 --sequence-parallel" "--dp 2"
try qwen2-window "--pp 2" "--tp 2 --pp 1"
try qwen3 "--dp 2 --zero 3 --recompute full" "--dp 1 --zero 0 --tp 2"
try olmo2-bias "--tp 4" "--tp 1"
try phi3 "--tp 2 --precision bf16" "--tp 4"
try phi3-long "--tp 2 --recompute selective" "--tp 1"
try neox "--tp 3" "--tp 1 --pp 2"
try neox-sequential "--tp 2 --dp 2 --zero 2" "--tp 1 --dp 1 --zero 0"
try bloom "--tp 2 --sequence-parallel" "--tp 5 --sequence-parallel"
try bloom-untied "--pp 2 --tp 2" "--pp 1 --tp 4"
finish
