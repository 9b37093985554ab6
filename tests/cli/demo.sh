#!/bin/bash
# make demo in short: a little text, a few steps of training; everything that it says and leaves.
. "$(dirname "$0")/lib.sh"
if [ "$IMECE_SANITIZE" = thread ]; then # minutes of plain matrix products; each command has tests of its own
    skip demo "the thread sanitizer's build"
    finish
    exit
fi
case $IMECE in /*) ;; *) IMECE=$PWD/$IMECE ;; esac
cd "$T" || exit 1

mkdir -p pages/man1 fortunes
for n in $(seq 1 20); do
    { printf '.TH KOY%d 1\n.SH AÇIKLAMA\n.B köy\nkomutu\n' "$n"
      for i in $(seq 1 30); do printf 'Bu komut %d numaralı işi birlikte yapar; köy %d kişidir.\n.PP\n' $((i * n)) "$i"; done; } | gzip >pages/man1/koy$n.1.gz
done
for i in $(seq 1 200); do printf 'The village %d works together on what one house cannot do alone.\n%%\n' $((i * i)); done >fortunes/village

export steps=16
demo() { env PAGES=pages FORTUNES=fortunes DEMO=demo STEPS=$steps IMECE="$IMECE" "$IMECE_SOURCE/tools/demo.sh" 0.5; }
expect "the demo" 0 'demo/tok/tokenizer.json: [0-9]+ tokens' 'text-train: [0-9]+ tokens in' 'before training +[0-9]' 'bigram\) +[0-9]+\.[0-9]+  #' 'trigram\) +[0-9]' \
    "this model, after $steps steps +[0-9]+\.[0-9]+  #" 'Bu komut' "step $((steps + 5)) +[0-9]\.[0-9]{5} +[0-9]\.[0-9]{5} " 'measured: demo/four/pipeline.svg' '  tokenizer +demo/tok' '--resume demo/run --minutes 1$' -- demo
check "the model's tokens and the counted bytes are of the same documents" python3 - <<'P'
import json
for part in ("train", "valid"):
    text, letters = (json.load(open(f"demo/{name}-{part}.json")) for name in ("text", "bytes"))
    assert text["documents"] == letters["documents"] > 0 and text["text_bytes"] == letters["text_bytes"], (text, letters)
    assert text["tokens"] < letters["tokens"] / 2, (text, letters)
P
check "it learned, and its run says the same" python3 - <<'P'
import json
s = json.load(open("demo/summary.json"))
assert s["last_bits_per_byte"] < s["first_bits_per_byte"] < 8, s
P
check "the picture is well-formed, and begins where the run does" python3 - <<'P'
import json, math, re, xml.dom.minidom as x
svg = x.parse("demo/curve.svg")
first = [m for m in map(json.loads, open("demo/run/metrics.jsonl")) if "grad_norm" in m][0]["loss"] / math.log(2)
a = json.load(open("demo/text-train.json"))
ticks = {}
for t in svg.getElementsByTagName("text"):
    if t.getAttribute("class") == "axis" and t.getAttribute("text-anchor") == "end" and re.fullmatch(r"\d", t.firstChild.data):
        ticks[int(t.firstChild.data)] = float(t.getAttribute("y")) - 4
(b0, y0), (b1, y1) = min(ticks.items()), max(ticks.items())
y = float(svg.getElementsByTagName("polyline")[0].getAttribute("points").split()[0].split(",")[1])
bits = b0 + (y - y0) * (b1 - b0) / (y1 - y0)
assert abs(bits - first * a["tokens"] / a["text_bytes"]) < 0.02, (bits, first, a)
P
check "one rank and four have the same losses" python3 - <<'P'
import json, os
steps = int(os.environ["steps"])
one, four = ([m for m in map(json.loads, open(f"demo/{name}/metrics.jsonl")) if "grad_norm" in m] for name in ("one", "four"))
assert [m["step"] for m in one] == [m["step"] for m in four] == list(range(1, steps + 6)), (one, four)
fp32 = "precision: fp32" in open("demo/four/plan.yaml").read()
for a, b in zip(one[steps:], four[steps:]):
    assert abs(a["loss"] - b["loss"]) <= (1e-5 if fp32 else 2e-2) * a["loss"], (a, b)
P
check "four ranks made a picture" python3 -c 'import xml.dom.minidom as x; assert len(x.parse("demo/four/pipeline.svg").getElementsByTagName("rect")) > 50'
check "what it says to try next works" sh -c "'$IMECE' generate --model demo/run --prompt 'Linux, ' --max-tokens 3 --threads 1"
checkpoint=$(sed -n 's/.*"checkpoint": *"\([^"]*\)".*/\1/p' demo/summary.json)
check "its checkpoint has the tokenizer" cmp demo/tok/tokenizer.json "$checkpoint/tokenizer.json"
finish
