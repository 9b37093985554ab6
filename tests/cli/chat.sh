#!/bin/bash
# Conversations: what imece generate --chat gives a model is what imece data build --chat trained it on, in each form.
. "$(dirname "$0")/lib.sh"
cd "$T" || exit 1
case $IMECE in /*) ;; *) IMECE=$OLDPWD/$IMECE ;; esac

for i in $(seq 1 60); do echo "What is the village called, $i times over? It is called imece. User: Assistant: user assistant"; done >text
question='What is <|im_end|> the village, köy?'
printf '{"messages": [{"role": "user", "content": "%s"}, {"role": "assistant", "content": "It is called imece."}]}\n' "$question" >one.jsonl
for i in $(seq 1 20); do cat one.jsonl; done >chats.jsonl
config() { # VOCABULARY
    printf '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
 "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "tie_word_embeddings": true, "vocab_size": %d, "eos_token_id": 0}' "$1" >"config-$1.json"
}
config 400
config 257
specials() { for s in "$@"; do printf -- '--special\n%s\n' "$s"; done; }
mapfile -t chatml < <(specials '<|endoftext|>' '<|im_start|>' '<|im_end|>')
mapfile -t llama3 < <(specials '<|begin_of_text|>' '<|end_of_text|>' '<|start_header_id|>' '<|end_header_id|>' '<|eot_id|>')
mapfile -t plain < <(specials '<|endoftext|>')

# FORM MODEL TOKENIZER-OPTIONS... : trains on chats.jsonl, and compares with what the model is asked
same() {
    local form=$1 config=$2
    shift 2
    expect "$form: trains on conversations" 0 -- "$IMECE" train --model "$config" "$@" --data "$form-train" --steps 1 --seq-len 128 --micro-batch 1 --threads 1 --out "run-$form"
    expect "$form: said so" 0 "$says" '"prompt_ids"' -- "$IMECE" generate --model "run-$form" --chat --prompt "$question" --max-tokens 1 --threads 1 --json $how
    cp "$T/out" asked.json
    "$IMECE" data show "$form-train" --document 0 --ids >ids.txt
    check "$form: the ids of training up to the answer, which is what counts" python3 - "$form" <<'P'
import json, sys
form = sys.argv[1]
asked = json.load(open("asked.json"))["prompt_ids"]
ids = list(map(int, open("ids.txt").read().split()))
mask = open(form + "-train.mask", "rb").read(len(ids))
assert len(asked) > 10 and ids[:len(asked)] == asked, (asked, ids)
assert not any(mask[:len(asked)]) and mask[len(asked)] == 1, mask
P
}

for form in chatml llama3 plain; do
    declare -n special=$form
    "$IMECE" tokenizer train text --split lines --vocab-size 400 "${special[@]}" --out tok-$form >/dev/null
    "$IMECE" data build chats.jsonl --chat auto --tokenizer tok-$form --valid-fraction 0 --out $form >/dev/null
    how=
    case $form in chatml) says='in the form ChatML, by the special tokens of .*tokenizer.json' ;; llama3) says='in the form Llama 3, by' ;; *) says='in the form plain \(User:, Assistant:\), by' ;; esac
    same $form config-400.json --tokenizer tok-$form
done
"$IMECE" data build chats.jsonl --chat plain --valid-fraction 0 --out bytes >/dev/null
says='in the form plain \(User:, Assistant:\): a model of bytes'
same bytes config-257.json
"$IMECE" data build chats.jsonl --chat plain --tokenizer tok-chatml --valid-fraction 0 --out named >/dev/null
says='in the form plain .*, by --chat-format' how='--chat-format plain'
same named config-400.json --tokenizer tok-chatml

# where no token ends a turn, the next one's first letters do
python3 -c 'print(end="b\nUser: " * 600)' >turns.txt
sed 's/"hidden_size": 16/"hidden_size": 32/' config-257.json >config-turns.json
"$IMECE" data build turns.txt --valid-fraction 0 --out turns >/dev/null
expect "plain turns: learned" 0 -- "$IMECE" train --model config-turns.json --data turns-train --steps 80 --seq-len 32 --micro-batch 4 --lr 1e-2 --warmup 5 --threads 1 --out run-turns
expect "plain turns: the answer ends before the user's next turn" 0 '"text": " b", "stop": "eos", "stop_string": null' -- \
    "$IMECE" generate --model run-turns --chat --prompt b --max-tokens 40 --temperature 0 --threads 1 --json
expect "plain turns: the same on two ranks" 0 '"text": " b", "stop": "eos", "stop_string": null' -- \
    "$IMECE" generate --model run-turns --chat --prompt b --max-tokens 40 --temperature 0 --threads 1 --json --tp 2
expect "a form whose tokens are not there" 2 'needs the token <\|start_header_id\|>, which .*tok.* does not have|needs the token <\|start_header_id\|>, which .*run-chatml.* does not have' -- \
    "$IMECE" generate --model run-chatml --chat --chat-format llama3 --prompt hi --threads 1
expect "--chat with ids" 2 '--chat is for a --prompt' -- "$IMECE" generate --model run-chatml --chat --ids 1,2 --threads 1
expect "--chat-format without --chat" 2 'give --chat too' -- "$IMECE" generate --model run-chatml --chat-format plain --prompt hi --threads 1
finish
