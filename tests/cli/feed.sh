# What a run reads: blends, several files, packed conversations, attention within documents, validation by document.
. "$(dirname "$0")/lib.sh"
cd "$T" || exit 1
case $IMECE in /*) ;; *) IMECE=$OLDPWD/$IMECE ;; esac
export GOMP_SPINCOUNT=3000

seq -f 'line %g of the first' 1 400 >a.txt
seq -f '%g is a line of the second file' 1 200 >b.txt
"$IMECE" data build a.txt --split lines --out a --valid-fraction 0 >/dev/null
"$IMECE" data build b.txt --split lines --out b --valid-fraction 0 >/dev/null
TRAIN="$IMECE train --model llama-bytes-tiny --seq-len 32 --micro-batch 2 --global-batch 4 --threads 1 --lr 1e-3 --schedule constant"

expect "a blend: a line a source, with its share and epochs" 0 '70\.00 %  .*a-train: .* epochs' '30\.00 %  .*b-train' -- $TRAIN --data 0.7:a-train,0.3:b-train --steps 4 --out blend
expect "a blend: its names are absolute in plan.yaml" 0 -- grep -q "data: .*0.7:$T/a-train,0.3:$T/b-train" blend/plan.yaml
expect "a blend goes on" 0 'step 6' -- "$IMECE" train --resume blend --steps 6
printf 'sources:\n  - {data: a-train, weight: 7}\n  - {data: b-train, weight: 3}\n' >blend.yaml
expect "the same blend in a file" 0 -- $TRAIN --data blend.yaml --steps 6 --out again
check "a blend stopped and gone on with, and one in a file: the same losses" python3 - <<'P'
import json
read = lambda run: [m["loss"] for m in map(json.loads, open(run + "/metrics.jsonl")) if "grad_norm" in m]
a, b = read("blend"), read("again")
assert len(a) == 6 and a == b, (a, b)
P
cp b-train.bin b.keep
printf 'X' | dd of=b-train.bin bs=1 seek=100 conv=notrunc 2>/dev/null
expect "a source that changed since the checkpoint is refused, by its name" 2 'not the data of this run \(fingerprint .*: .*/b-train has changed' -- "$IMECE" train --resume blend --steps 8
cp b.keep b-train.bin
printf 'sources:\n  - {data: a-train, weight: 8}\n  - {data: b-train, weight: 2}\n' >blend.yaml
expect "weights that changed since the checkpoint too" 2 'not the data of this run .*: the files are the same, their weights or their order are not' -- "$IMECE" train --resume again --steps 8
expect "several files of one corpus" 0 'a-train,b-train: 1[0-9.]*k tokens' -- $TRAIN --data a-train,b-train --steps 1 --out both
expect "weights that cannot be exact" 2 'come round only after .* such as 0\.' -- $TRAIN --data 0.123456789:a-train,1:b-train --steps 1 --out x
expect "a blend with a file that is not there" 1 'nowhere.idx: no such file' -- $TRAIN --data 1:a-train,1:nowhere --steps 1 --out x
expect "a validation has no weights" 2 'names without weights' -- $TRAIN --data a-train --valid 1:a-train,1:b-train --steps 1 --out x

expect "validation by document" 0 'validation  .*the last documents' 'validation loss' -- $TRAIN --data 0.7:a-train,0.3:b-train --valid-share 0.1 --steps 2 --out share
expect "--valid and --valid-share" 2 'the validation is one of them' -- $TRAIN --data a-train --valid b-train --valid-share 0.1 --steps 1 --out x
expect "another share is other data" 2 'not the data of this run' -- "$IMECE" train --resume share --steps 3 --valid-share 0.2

# conversations: packed and padded give the same loss and the same first step
python3 - <<'P'
import json, random
random.seed(1)
with open("c.jsonl", "w") as f:
    for i in range(60):
        a, b = random.randrange(100), random.randrange(100)
        f.write(json.dumps({"messages": [{"role": "user", "content": f"{a}+{b}"}, {"role": "assistant", "content": str(a + b)}]}) + "\n")
P
"$IMECE" data build c.jsonl --chat auto --out c --valid-fraction 0 >/dev/null
expect "conversations are packed by themselves" 0 'whole documents packed' 'attention within documents' '\(mask\)' -- $TRAIN --data c-train --seq-len 96 --steps 1 --out pack
RUN="blend/checkpoints/step-6"
for way in whole none; do "$IMECE" eval --model $RUN --data c-train --seq-len 96 --pack $way --batch 3 --json >$way.json; done
"$IMECE" eval --model $RUN --data c-train --seq-len 96 --pack whole --attention causal --batch 3 --json >leak.json
check "packed and padded: the same loss of the same tokens; one that lets documents see one another has another" python3 - <<'P'
import json
a, b, leak = (json.load(open(f)) for f in ("whole.json", "none.json", "leak.json"))
assert a["tokens"] == b["tokens"] == leak["tokens"] > 100, (a, b)
assert abs(a["loss"] - b["loss"]) <= 1e-5 * b["loss"], (a, b)
assert abs(leak["loss"] - b["loss"]) > 1e-4 * b["loss"], (leak, b)
P
N=$("$IMECE" data info c-train --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["documents"])')
rows() { "$IMECE" train --model llama-bytes-tiny --data c-train --seq-len 96 --pack "$1" --steps 1 --dry-run 2>/dev/null | sed -n 's/.* tokens, \([0-9]*\) samples.*/\1/p'; }
W=$(rows whole)
for layout in "--dp 2 --zero 2" "--pp 2" "--tp 2 --sequence-parallel"; do
    name=$(echo "$layout" | tr -d ' -')
    "$IMECE" train --model llama-bytes-tiny --data c-train --seq-len 96 --pack whole --micro-batch 4 --global-batch "$W" --steps 1 --order sequential $layout --threads 1 --out "w$name" >/dev/null 2>&1
done
"$IMECE" train --model llama-bytes-tiny --data c-train --seq-len 96 --pack none --micro-batch 20 --global-batch "$N" --steps 1 --order sequential --threads 1 --out alone >/dev/null 2>&1
check "one step over all documents: packed on several ranks and each alone" python3 - <<'P'
import glob, json
first = lambda run: next(m for m in map(json.loads, open(run + "/metrics.jsonl")) if "grad_norm" in m)
alone = first("alone")
runs = glob.glob("w*/metrics.jsonl")
assert len(runs) == 3, runs
for run in runs:
    m = first(run.split("/")[0])
    for key in ("loss", "grad_norm"):
        assert abs(m[key] - alone[key]) <= 1e-5 * alone[key], (run, key, m[key], alone[key])
P
expect "a document that no sample has room for" 2 'are longer than seq-len 8 and one target' -- $TRAIN --data c-train --seq-len 8 --steps 1 --out x
expect "--long cut" 0 -- $TRAIN --data c-train --seq-len 16 --long cut --steps 1 --out cut
expect "--long with a stream" 2 'long is of --pack whole and none' -- $TRAIN --data a-train --pack stream --long cut --steps 1 --out x
expect "another way of packing is not the same run" 2 'pack cannot change on resume' -- "$IMECE" train --resume cut --pack none --steps 2
expect "attention within documents of a stream" 0 'attention within documents' -- $TRAIN --data a-train --attention document --steps 2 --out doc

# a model that does not have the ids, before the first step; a corpus of a terabyte
printf '1 2 300\n' >ids.txt
"$IMECE" data build ids.txt --ids --out ids --valid-fraction 0 >/dev/null
expect "ids that the model does not have are told at the start" 1 'ids-train.bin: holds the id 300, but the model.s vocabulary has 257' -- $TRAIN --data ids-train --seq-len 1 --steps 1 --out x --dry-run
if truncate -s 1T tera.bin 2>/dev/null; then
    python3 - <<'P'
import struct
n = 1 << 11  # documents of 2^28 tokens, uint16
with open("tera.idx", "wb") as f:
    f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, n, n + 1))
    f.write(struct.pack("<%di" % n, *[1 << 28] * n))
    f.write(struct.pack("<%dq" % n, *[i << 29 for i in range(n)]))
    f.write(struct.pack("<%dq" % (n + 1), *range(n + 1)))
P
    expect "a terabyte: the run begins" 0 'tera: 550G tokens, 17.2G samples' -- $TRAIN --data tera --steps 1 --out tera-run
else
    skip "a terabyte: the run begins" "no sparse files of that size here"
fi
finish
