#!/usr/bin/env bash
# imece generate: text and ids, streaming, stop texts, JSON, refusals.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

for i in $(seq 300); do echo "satır $i: köy işi imece, çok güzel değil mi? 🌾 $((i * i))"; done >"$T/text"
"$IMECE" data build "$T/text" --split lines --out "$T/d" >"$T/out" 2>"$T/err" || { fail data "$(cat "$T/err")"; finish; }
run=$T/run
"$IMECE" train --model "$IMECE_SOURCE/models/llama-bytes-tiny.json" --data "$T/d-train" --seq-len 32 --micro-batch 4 --steps 30 --lr 3e-3 --threads 1 \
    --out "$run" >"$T/out" 2>"$T/err" || { fail train "$(cat "$T/err")"; finish; }
gen() { "$IMECE" generate --threads 1 "$@"; }
G=("$IMECE" generate --threads 1)
ids=$IMECE_SOURCE/tests/golden/llama-tied # a vocabulary of 101, 64 positions

# ---- text: a run directory, its checkpoint, standard input ---------------------------------------------
expect text 0 'generate 7 tokens read in [0-9.]+ s, 40 new at [0-9.e+]+/s, ready after .* s; stopped by length' -- \
    "${G[@]}" --model "$run" --prompt "satır " --max-tokens 40 --temperature 0
cp "$T/out" "$T/greedy"
check "the closing line is on stderr alone" sh -c "! grep -q 'tokens read' '$T/out'"
expect checkpoint 0 -- "${G[@]}" --model "$run/checkpoints/step-30" --prompt "satır " --max-tokens 40 --temperature 0
check "a run is its newest checkpoint" cmp "$T/out" "$T/greedy"
for how in "--prompt -" "-"; do
    # shellcheck disable=SC2086
    check "standard input: $how" sh -c "echo 'satır ' | '$IMECE' generate --threads 1 --model '$run' $how --max-tokens 40 --temperature 0 | cmp - '$T/greedy'"
done
check "ids of the same bytes" sh -c "echo 115, 97 116,196 177 114 32 | '$IMECE' generate --threads 1 --model '$run' --ids - --max-tokens 40 --temperature 0 | cmp - '$T/greedy'"
check "plain kernels, deferred device: the same greedy text" sh -c \
    "'$IMECE' generate --threads 1 --model '$run' --prompt 'satır ' --max-tokens 40 --temperature 0 --kernels plain --device deferred | cmp - '$T/greedy'"
expect "an empty prompt begins a document" 0 '"prompt_ids": \[256\]' -- "${G[@]}" --model "$run" --prompt "" --max-tokens 3 --json
expect "no new tokens" 0 '"ids": \[\], "logprobs": \[\], "text": "", "stop": "length"' -- "${G[@]}" --model "$run" --prompt ab --max-tokens 0 --json
expect "quiet: no closing line" 0 -- "$IMECE" -q generate --threads 1 --model "$run" --prompt a --max-tokens 3
check "quiet: nothing on stderr" test ! -s "$T/err"

# ---- drawing --------------------------------------------------------------------------------------------
draw() { gen --model "$run" --prompt "satır " --max-tokens 60 "$@" 2>>"$T/err"; }
draw --temperature 1.5 --top-p 1 --seed 3 >"$T/a"
draw --temperature 1.5 --top-p 1 --seed 3 >"$T/b"
draw --temperature 1.5 --top-p 1 --seed 4 >"$T/c"
check "the same seed, the same bytes" cmp "$T/a" "$T/b"
check "another seed, other bytes" sh -c "! cmp -s '$T/a' '$T/c'"
draw --temperature 1.5 --top-k 1 >"$T/b"
draw --temperature 0 >"$T/c"
check "top-k 1 is greedy" cmp "$T/b" "$T/c"
for f in a b c; do check "text $f is UTF-8, although bytes were drawn" iconv -f UTF-8 -t UTF-32 "$T/$f" -o /dev/null; done
draw --temperature 50 --top-p 1 --seed 5 --json >"$T/noise"
check "noise becomes U+FFFD, in JSON too" sh -c "iconv -f UTF-8 -t UTF-32 '$T/noise' -o /dev/null && grep -q '�' '$T/noise'"

# ---- ends -------------------------------------------------------------------------------------------------
word=$(sed 's/^[^ ]* //; s/ .*//' "$T/greedy" | head -1) # a word that greedy text comes to
if [ -n "$word" ]; then
    expect "stop text" 0 "\"stop\": \"stop string\", \"stop_string\": \"$word\"" -- "${G[@]}" --model "$run" --prompt "satır " --max-tokens 40 --temperature 0 --stop xyzzy --stop "$word" --json
    check "the text ends before it" sh -c "! grep -q '\"text\": \".*$word.*\", \"stop\"' '$T/out'"
else
    fail "stop text" "the trained model's greedy text has one word only"
fi
cp -r "$run/checkpoints/step-30" "$T/ends"
sed -i 's/"eos_token_id": *256/"eos_token_id": [7, 32]/' "$T/ends/config.json"
expect "end of text: any of several ids" 0 '"ids": \[([0-9]+, )*32\].*"text": "[^ ]*", "stop": "eos"' -- "${G[@]}" --model "$T/ends" --prompt "satır" --max-tokens 60 --temperature 0 --json

# ---- JSON, log-probabilities ----------------------------------------------------------------------------------
expect json 0 '^\{"prompt_ids": \[1, 2, 3\], "ids": \[[0-9, ]+\], "logprobs": \[-[-0-9., e]+\], "text": null, "stop": "length", "stop_string": null, "memory": \[\{"rank": 0, "predicted": \{.*\}, "measured": \{.*\}\}\]\}$' -- \
    "${G[@]}" --model "$ids" --ids 1,2,3 --max-tokens 5 --json
expect "log-probabilities of the prompt" 0 '"prompt_logprobs": \[null(, -[0-9.e-]+){2}\]' -- "${G[@]}" --model "$ids" --ids 1,2,3 --max-tokens 1 --json --logprobs-of-prompt
expect "ids are written where text is not known" 0 '^[0-9]+( [0-9]+){4}$' -- "${G[@]}" --model "$ids" --ids "1 2 3" --max-tokens 5 --temperature 0
cp "$T/out" "$T/numbers"
expect bf16 0 '^[0-9]+( [0-9]+){4}$' -- "${G[@]}" --model "$ids" --ids "1 2 3" --max-tokens 5 --temperature 0 --precision bf16
seq -s, 1 60 >"$T/long"
expect "a prompt up to the model's positions" 0 '"prompt_ids": \[1, 2, .* 60\], "ids": \[[0-9]+(, [0-9]+){3}\]' -- \
    sh -c "'$IMECE' generate --threads 1 --model '$ids' --ids - --temperature 1 --json <'$T/long'"

# ---- ranks that are threads: what one rank says -----------------------------------------------------------------
ids_of() { sed 's/.*"ids": \(\[[^]]*\]\).*/\1/' "$1"; }
draw --temperature 1.5 --seed 3 --json >"$T/one"
draw --temperature 1.5 --seed 3 >"$T/a"
for layout in "--tp 2" "--pp 2" "--tp 2 --pp 2" "--tp 4" "--tp 2 --device deferred"; do
    # shellcheck disable=SC2086
    expect "greedy, $layout" 0 'stopped by length' 'memory of rank 1, predicted and touched: weights .*kv cache' -- \
        "${G[@]}" --model "$run" --prompt "satır " --max-tokens 40 --temperature 0 $layout
    check "the same text, once, $layout" cmp "$T/out" "$T/greedy"
    # shellcheck disable=SC2086
    draw --temperature 1.5 --seed 3 --json $layout >"$T/b"
    check "the same draws, $layout" test "$(ids_of "$T/one")" = "$(ids_of "$T/b")"
done
draw --temperature 1.5 --seed 3 --tp 2 --pp 2 >"$T/b"
check "drawn text as it comes" cmp "$T/a" "$T/b"
check "standard input, tp 2" sh -c "echo 'satır ' | '$IMECE' generate --threads 1 --model '$run' - --max-tokens 40 --temperature 0 --tp 2 | cmp - '$T/greedy'"
[ -z "$word" ] || expect "stop text, pp 2" 0 "\"stop\": \"stop string\", \"stop_string\": \"$word\"" -- "${G[@]}" --model "$run" --prompt "satır " --max-tokens 40 --temperature 0 --stop "$word" --json --pp 2
expect "end of text, tp 2" 0 '"stop": "eos".*"memory": \[\{"rank": 0,.*\{"rank": 1,' -- "${G[@]}" --model "$T/ends" --prompt "satır" --max-tokens 60 --temperature 0 --json --tp 2
expect "log-probabilities of the prompt, tp 2 x pp 2" 0 '"prompt_logprobs": \[null(, -[0-9.e-]+){2}\]' -- "${G[@]}" --model "$ids" --ids 1,2,3 --max-tokens 1 --json --logprobs-of-prompt --tp 2 --pp 2
expect "no new tokens, pp 2" 0 '"ids": \[\], "logprobs": \[\]' -- "${G[@]}" --model "$run" --prompt ab --max-tokens 0 --json --pp 2
expect "tp that the heads do not allow" 2 'tp 3 is neither .*nearest: 2, 4; layouts of 3 ranks: pp 3$' -- "${G[@]}" --model "$run" --prompt a --tp 3
check "told once" test "$(grep -c 'tp 3 is neither' "$T/err")" = 1
expect "more stages than blocks" 2 'pp 5 stages, but .* has 4 blocks; at most that many stages; .*layouts of 4 ranks: ' -- "${G[@]}" --model "$run" --prompt a --pp 5
expect "a bad prompt before ranks start" 2 '--ids: 101 \(number 1\)' -- "${G[@]}" --model "$ids" --ids 101 --tp 2

# ---- refusals ---------------------------------------------------------------------------------------------------
expect "no model" 2 '--model is missing' -- "${G[@]}" --prompt a
expect "no prompt" 2 '--prompt is missing: a text, - for standard input, or --ids' -- "${G[@]}" --model "$run"
expect "two prompts" 2 '--prompt and --ids: one of them' -- "${G[@]}" --model "$run" --prompt a --ids 1
expect "two prompts, one of them standard input" 2 'standard input is the prompt, and --prompt gives one too' -- "${G[@]}" --model "$run" --prompt a -
expect "a word that is no option" 2 '"hello": a prompt stands behind --prompt' -- "${G[@]}" --model "$run" hello
expect "ids that are no numbers" 2 '--ids: "two" at character 3 is no id' -- "${G[@]}" --model "$run" --ids "1,two,3"
expect "no ids in it" 2 '--ids: there is no id in it' -- "${G[@]}" --model "$run" --ids " , "
expect "an id beyond the vocabulary" 2 '--ids: 101 \(number 3\): ids are from 0 to 100 \(.*llama-tied/config.json: vocab_size\)' -- "${G[@]}" --model "$ids" --ids 1,2,101
expect "an id far beyond it" 2 'ids are from 0 to 100' -- "${G[@]}" --model "$ids" --ids 99999999999999999999
expect "a negative id" 2 '--ids: -1 \(number 1\)' -- "${G[@]}" --model "$ids" --ids -1
expect "text for a model with a tokenizer" 1 'vocabulary of 101 ids, .*no tokenizer.json beside it.*--ids "1,2,3"' -- "${G[@]}" --model "$ids" --prompt hello
expect "stop text for such a model" 1 '--stop: .* vocabulary of 101 ids' -- "${G[@]}" --model "$ids" --ids 1 --stop a
expect "an empty stop text" 2 '--stop: an empty text' -- "${G[@]}" --model "$run" --prompt a --stop ""
seq -s, 1 65 >"$T/long"
expect "a prompt longer than the positions" 2 'the prompt has 65 tokens, and the model 64 positions .*config.json\): shorten it' -- "${G[@]}" --model "$ids" --ids "$(cat "$T/long")"
expect "more new tokens than positions" 2 '--max-tokens 62 behind a prompt of 3 tokens is beyond the model.s 64 positions .*: at most 61' -- "${G[@]}" --model "$ids" --ids 1,2,3 --max-tokens 62
expect "a temperature below 0" 2 '--temperature: "-1" is not a number' -- "${G[@]}" --model "$ids" --ids 1 --temperature -1
expect "log-probabilities of the prompt without JSON" 2 'give --json too' -- "${G[@]}" --model "$ids" --ids 1 --logprobs-of-prompt
expect "a named shape has no weights" 1 'llama-bytes-tiny: no weights \(model.safetensors' -- "${G[@]}" --model llama-bytes-tiny --prompt a
expect "no such model" 1 'xyzzy' -- "${G[@]}" --model "$T/xyzzy" --prompt a
mkdir "$T/empty"
expect "a directory without a model" 1 "$T/empty" -- "${G[@]}" --model "$T/empty" --prompt a
cp -r "$run/checkpoints/step-30" "$T/torn"
truncate -s 1000 "$T/torn/model.safetensors"
expect "weights that are cut" 1 'torn/model.safetensors' -- "${G[@]}" --model "$T/torn" --prompt a
cp -r "$run/checkpoints/step-30" "$T/other"
sed -i 's/"hidden_size": *128/"hidden_size": 256/' "$T/other/config.json"
expect "weights of another shape: by name" 1 'model\.embed_tokens\.weight' -- "${G[@]}" --model "$T/other" --prompt a
expect "stdout that takes nothing" 1 'cannot write to standard output' -- sh -c "'$IMECE' generate --threads 1 --model '$run' --prompt a --max-tokens 3 >/dev/full"

# ---- a signal ends it between two tokens -----------------------------------------------------------------------------
"${G[@]}" --model "$run" --prompt a --max-tokens 1000 --temperature 1 --kernels plain --device deferred --json >"$T/out" 2>"$T/err" &
pid=$!
for _ in $(seq 100); do sleep 0.05; kill -0 $pid 2>/dev/null && kill -INT $pid && break; done
wait $pid
code=$?
if [ $code = 4 ]; then
    check "Ctrl-C: exit 4, and what was written so far" sh -c "grep -q '\"stop\": \"asked\"' '$T/out' && grep -q 'stopped after' '$T/err'"
elif [ $code = 0 ] || [ $code = 130 ]; then # too early, before the program listens, or too late
    ok "Ctrl-C: the moment was missed"
else
    fail "Ctrl-C" "exit code $code"
    show err
fi
# ---- the same with two ranks: both end
"${G[@]}" --model "$run" --prompt a --max-tokens 1000 --temperature 1 --kernels plain --tp 2 --json >"$T/out" 2>"$T/err" &
pid=$!
for _ in $(seq 100); do sleep 0.05; kill -0 $pid 2>/dev/null && kill -INT $pid && break; done
wait $pid
code=$?
if [ $code = 4 ]; then
    check "Ctrl-C, tp 2: exit 4" grep -q '"stop": "asked"' "$T/out"
elif [ $code = 0 ] || [ $code = 130 ]; then
    ok "Ctrl-C, tp 2: the moment was missed"
else
    fail "Ctrl-C, tp 2" "exit code $code"
    show err
fi
finish
