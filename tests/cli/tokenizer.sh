#!/bin/bash
# imece tokenizer, and a model on its tokens: trained, generated from, evaluated.
. "$(dirname "$0")/lib.sh"

text=$T/text
for i in $(seq 1 200); do
    printf 'Satır %d: the village works together, ve birlikte çalışır.\n' "$i"
    [ $((i % 20)) != 0 ] || echo '<|end|>'
done >"$text"

expect "training" 0 '480 tokens, [0-9]+ merges' -- "$IMECE" tokenizer train "$text" --separator '<|end|>' --vocab-size 480 --out "$T/tok"
expect "an existing one stays" 1 'exists: choose another --out' -- "$IMECE" tokenizer train "$text" --vocab-size 480 --out "$T/tok"
cp "$T/tok/tokenizer.json" "$T/one.json"
check "one thread or two: the same file" sh -c "'$IMECE' tokenizer train '$text' --separator '<|end|>' --vocab-size 480 --threads 1 --out '$T/tok' --force && cmp '$T/tok/tokenizer.json' '$T/one.json'"
expect "info" 0 'ids +480 ' 'end of text +0 \(<\|endoftext\|>\)' 'come back as they were' -- "$IMECE" tokenizer info "$T/tok"
check "text comes back" sh -c "'$IMECE' tokenizer encode -t '$T/tok' '$text' | '$IMECE' tokenizer decode -t '$T/tok' | cmp - '$text'"
head -c 20000 /dev/urandom >"$T/noise"
check "any bytes come back" sh -c "'$IMECE' tokenizer encode -t '$T/tok' '$T/noise' | '$IMECE' tokenizer decode -t '$T/tok' | cmp - '$T/noise'"
expect "lines" 0 '^0$' -- sh -c "printf 'a\n\n<|endoftext|>\n' | '$IMECE' tokenizer encode -t '$T/tok' --split lines"
expect "special tokens as letters" 0 '^[0-9]+ [0-9]+ ' -- sh -c "printf '<|endoftext|>' | '$IMECE' tokenizer encode -t '$T/tok' --special text"
expect "JSON with tokens" 0 '"tokens": \["a"\]' -- sh -c "printf a | '$IMECE' tokenizer encode -t '$T/tok' --json --tokens"
expect "an id that is none" 1 'id 999 has no token' -- sh -c "echo 999 | '$IMECE' tokenizer decode -t '$T/tok'"
echo '{"model": {"type": "Unigram"}}' >"$T/bad.json"
expect "refused by name" 1 'model: Unigram is not supported' -- "$IMECE" tokenizer info "$T/bad.json"
"$IMECE" tokenizer train "$text" --style metaspace --vocab-size 300 --out "$T/meta" >/dev/null
expect "metaspace: a character without a token is <unk>, not nothing" 0 '"<unk>"' '"text": "ve ?<unk>' -- sh -c "printf 've \316\251' | '$IMECE' tokenizer encode -t '$T/meta' --json --tokens | tee '$T/meta.json'; '$IMECE' tokenizer encode -t '$T/meta' <<'E' | '$IMECE' tokenizer decode -t '$T/meta' --json
ve Ω
E"
expect "no tokenizer named" 2 '--tokenizer FILE is missing' -- "$IMECE" tokenizer encode "$text"

# a model on its tokens
mkdir "$T/model"
cat >"$T/model/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
 "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "tie_word_embeddings": true, "vocab_size": 480, "bos_token_id": 0, "eos_token_id": 0}
JSON
"$IMECE" tokenizer encode -t "$T/tok" "$text" --separator '<|end|>' >"$T/ids"
"$IMECE" data build "$T/ids" --ids --eod 0 --valid-every 5 --out "$T/data" >/dev/null
expect "a run on tokens knows bits per byte" 0 '"last_bits_per_byte": [0-9]' -- "$IMECE" train --model "$T/model" --tokenizer "$T/tok" --data "$T/data-train" \
    --valid "$T/data-valid" --out "$T/run" --steps 3 --seq-len 32 --threads 1 --json
check "its checkpoint has the tokenizer" cmp "$T/tok/tokenizer.json" "$T/run/checkpoints/step-3/tokenizer.json"
expect "eval" 0 '"bits_per_byte": [0-9]' -- "$IMECE" eval --model "$T/run" --data "$T/data-valid" --seq-len 32 --threads 1 --json
expect "generate: text in, text out" 0 '"text": "' '"prompt_ids": \[[0-9]' -- "$IMECE" generate --model "$T/run" --prompt 'the village' --max-tokens 5 --threads 1 --json
expect "generate --chat says its form" 0 'in the form plain' -- "$IMECE" generate --model "$T/run" --prompt 'the village' --chat --max-tokens 5 --threads 1
expect "a tokenizer with more ids than the model" 2 'has 480 ids, the model' -- sh -c "sed 's/\"vocab_size\": 480/\"vocab_size\": 479/' '$T/model/config.json' >'$T/small.json' && '$IMECE' train --model '$T/small.json' --tokenizer '$T/tok' --data '$T/data-train' --steps 1 --seq-len 32 --out '$T/no'"
# ids of another tokenizer fit the vocabulary and are another text
"$IMECE" data build "$text" --out "$T/bytes" >/dev/null
"$IMECE" tokenizer train "$text" --vocab-size 300 --out "$T/tok3" >/dev/null
"$IMECE" data build "$text" --tokenizer "$T/tok3" --out "$T/three" >/dev/null
"$IMECE" data build "$text" --tokenizer "$T/tok" --out "$T/same" >/dev/null
expect "eval: ids that are bytes" 0 'warn 0 data .*bytes-valid was made with bytes, but the model.s tokenizer is .*/step-3/tokenizer.json' -- "$IMECE" -q eval --model "$T/run" --data "$T/bytes-valid" --seq-len 32 --threads 1
expect "train: ids of another tokenizer" 0 'warn 0 data .*three-train was made with .*tok3.*, but the model.s tokenizer is .*/tok/tokenizer.json' -- "$IMECE" -q train --model "$T/model" --tokenizer "$T/tok" --data "$T/three-train" --out "$T/three" --steps 1 --seq-len 32 --threads 1
for data in same data; do # data: ids of which nothing is known
    expect_not "no warning: $data" 0 'was made with' -- "$IMECE" -q train --model "$T/model" --tokenizer "$T/tok" --data "$T/$data-train" --out "$T/run-$data" --steps 1 --seq-len 32 --threads 1
done
finish
