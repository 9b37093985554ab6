# The commands of README.md and README.tr.md run as printed, except that training takes steps instead of minutes.
. "$(dirname "$0")/lib.sh"
case $IMECE in /*) ;; *) IMECE=$PWD/$IMECE ;; esac
mkdir "$T/bin"
ln -s "$IMECE" "$T/bin/imece"
PATH=$T/bin:$PATH

# a sanitized build computes with plain products: a smaller model there
small=
[ -z "$IMECE_SANITIZE" ] || small='s/llama-bytes-small/llama-bytes-tiny/; s/--ranks 4/--ranks 2/; s/imece train/imece train --seq-len 32 --micro-batch 2/'

# what stands in for the model that the pages download: a tokenizer, and a checkpoint with it
model() {
    printf '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 16, "intermediate_size": 32,
 "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "tie_word_embeddings": true, "vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0}' >config.json
    imece tokenizer train "$1" --vocab-size 300 --out first-tok && imece data build "$1" --tokenizer first-tok --out first &&
        imece train --model config.json --tokenizer first-tok --data first-train --steps 1 --seq-len 32 --out first-run && mv first-run/checkpoints/step-1 SmolLM2-135M &&
        rm -r first*
}

# README -> its lines of shell that begin with imece or end in it
commands() {
    awk '/^```sh/ { on = 1; next } /^```/ { on = 0 } on && /(^|\| )imece /' "$1" |
        sed -e 's/ *#.*//' -e 's/--minutes 10/--steps 3/' -e 's/--minutes 20/--steps 5/' -e 's/--steps 20\{1,2\} /--steps 3 /' \
            -e 's/^imece fabric .*/& || [ $? = 3 ]/' -e "$small" # 3: this machine has something to tell
}

for readme in README.md README.tr.md; do
    mkdir "$T/$readme"
    cd "$T/$readme" || exit 1
    for text in notes.txt notlar.txt more.txt baska.txt; do seq -f 'Line %g of a text that is long enough.' 1 600 >$text; done
    for i in $(seq 30); do
        printf '{"messages": [{"role": "user", "content": "Number %d?"}, {"role": "assistant", "content": "Line %d of a text."}]}\n' "$i" "$i"
        printf '{"prompt": "Number %d? ", "completion": "Line %d of a text."}\n' "$i" "$i"
    done | tee chats.jsonl >sohbetler.jsonl
    printf 'export NCCL_DEBUG=INFO\nsrun ./train\n' | tee job.sh >is.sh
    printf 'host1:11:11 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA\n' | tee job.log >is.log
    check "$readme: a model beside the text" model notes.txt
    commands "$IMECE_SOURCE/$readme" >commands
    check "$readme: has commands" test "$(wc -l <commands)" -ge 20
    while read -r line <&3; do
        expect "$readme: $line" 0 -- sh -c "$line"
    done 3<commands
    # the name of a checkpoint is in latest, as the text says
    check "$readme: latest names a checkpoint" sh -c 'for c in */checkpoints; do test -f "$c/$(cat "$c/latest")/model.safetensors" || exit 1; done'
done
finish
