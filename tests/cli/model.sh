# imece model: list and show; what is refused in configs and in files of weights, with file, key or offset.
. "$(dirname "$0")/lib.sh"
golden=$IMECE_SOURCE/tests/golden
case $IMECE in /*) ;; *) IMECE=$PWD/$IMECE ;; esac
cd "$T" || exit 1

# A fresh copy of a tiny model in m/.
fresh() {
    rm -rf m
    mkdir m
    cp "$golden/$1/config.json" "$golden/$1/model.safetensors" m/
    chmod u+w m/*
}
# Replaces text in m/config.json.
config() { sed -i "$1" m/config.json; }
# m/model.safetensors with this header (padded to 8) and so many bytes of data.
header() {
    local text=$1
    while [ $((${#text} % 8)) != 0 ]; do text="$text "; done
    {
        printf "\\x$(printf %02x $((${#text} % 256)))\\x$(printf %02x $((${#text} / 256)))\\0\\0\\0\\0\\0\\0"
        printf %s "$text"
        head -c "$2" /dev/zero
    } >m/model.safetensors
}
show="$IMECE model show"

expect "list: names, families, sizes" 0 '^gpt2 +gpt2 +124.4 M' '^llama3.1-405b +llama +405.9 B' '^palm-540b +palm .* planning only' -- "$IMECE" model list
expect "list --json" 0 '^\{"name": "smollm2-135m", "family": "llama", "parameters": 134515008, "planning_only": false\}$' -- "$IMECE" model list --json
expect "show: a named shape" 0 'parameters +124439808' '8.544e\+08 FLOPs a token at 1024' 'tied to the token table' -- $show gpt2
expect "show --seq-len" 0 '"seq_len": 512, "flops_per_token": 797815296' -- $show gpt2 --seq-len 512 --json
expect "show --params" 0 '256 x 256 +model.layers.0.self_attn.q_proj.weight' -- $show llama-bytes-small --params
expect "show: planning only" 0 'planning only: this family is not implemented' -- $show palm-540b
fresh llama-tied
expect "show: a directory, its weights checked" 0 'files +[0-9]+ tensors, F32, all as the config says' -- $show m

expect "a wrong name" 1 'no model "smolm2-135m".*did you mean smollm2-135m' -- $show smolm2-135m
expect "a name of the hub" 1 'models are not downloaded' -- $show meta-llama/Llama-3.1-8B
expect "nothing given" 2 'one model' -- $show
mkdir empty
expect "a directory without config" 1 'empty: there is no config.json' -- $show empty

config 's/"model_type": "[a-z]*"/"model_type": "mamba"/'
expect "unknown model_type" 1 'm/config.json: model_type "mamba" is not implemented; implemented are: bloom, gpt2, gpt_neox, llama, mistral, olmo2, phi3, qwen2, qwen3' -- $show m
fresh llama-tied; config 's/"hidden_size": [0-9]*/"hidden_size": 1000000000000000000/'
expect "an absurd number" 1 'm/config.json: hidden_size is 1000000000000000000: it must be a whole number from 1 to 16777216' -- $show m
fresh llama-tied; config '/"intermediate_size"/d'
expect "a missing number" 1 'm/config.json: intermediate_size is missing' -- $show m
fresh llama-tied; config 's/"hidden_act": "[a-z_]*"/"hidden_act": "mish"/'
expect "unknown activation" 1 'm/config.json: hidden_act is "mish"' -- $show m
fresh llama-tied; config '0,/{/s//{"quantization_config": {"quant_method": "awq"},/'
expect "quantised weights" 1 'quantization_config \(quant_method "awq"\)' -- $show m
fresh llama-tied; config '0,/{/s//{"vocab_size": 3,/'
expect "a key twice" 1 'm/config.json' 'uplicate' -- $show m
fresh llama-tied; truncate -s 40 m/config.json
expect "half a config" 1 'm/config.json' -- $show m
fresh llama-tied; config 's/"intermediate_size": [0-9]*/"intermediate_size": 8/'
expect "a shape that disagrees, by name" 1 'tensor model.layers.0.mlp.gate_proj.weight has shape \[[0-9]+, [0-9]+\], but m/config.json makes it \[8, [0-9]+\]' -- $show m
fresh llama-tied; config 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 1/'
expect "tensors left over" 1 'has no place for: model.layers.1.input_layernorm.weight' -- $show m
fresh llama-tied; config 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 9/'
expect "tensors missing" 1 'are missing: model.layers.[23].input_layernorm.weight' -- $show m
fresh llama-untied; config 's/"tie_word_embeddings": false/"tie_word_embeddings": true/'
expect "two different heads in a tied model" 1 'set "tie_word_embeddings": false' -- $show m

fresh llama-tied; truncate -s -4 m/model.safetensors
expect "truncated weights" 1 'm/model.safetensors: tensor .* ends at byte [0-9]+ of the data, but the file holds [0-9]+' -- $show m
fresh llama-tied; printf xx >>m/model.safetensors
expect "bytes behind the last tensor" 1 'm/model.safetensors: 2 bytes after the last tensor \(from byte [0-9]+' -- $show m
fresh llama-tied; truncate -s 5 m/model.safetensors
expect "five bytes" 1 'm/model.safetensors: 5 bytes' -- $show m
fresh llama-tied; printf '\377\377\377\377\377\377\377\377' | dd of=m/model.safetensors conv=notrunc 2>/dev/null
expect "a header length near 2^64" 1 'a header of 18446744073709551615 bytes: the format allows 100000000' -- $show m
printf '\100\235\337\007\0\0\0\0{}' >m/model.safetensors
expect "a header over the limit" 1 'a header of 132095296 bytes' -- $show m
header 'no json' 0
expect "a header that is no JSON" 1 'byte 8: the header must be JSON' -- $show m
header '{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}' 6
expect "overlapping tensors" 1 'tensors a and b overlap' -- $show m
header '{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F32","shape":[1],"data_offsets":[3,7]}}' 7
expect "a tensor at an odd byte is no fault of the file" 1 'm/model.safetensors: 2 tensors that m/config.json \(llama\) has no place for|tensors that m/config.json \(llama\) needs are missing' -- $show m
header '{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}' 4
expect "a shape that overflows" 1 'tensor a: the product of the shape is beyond 2\^63' -- $show m
header '{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}' 8
expect "begin behind end" 1 'data_offsets begin at 8, after their end 0' -- $show m
rm m/model.safetensors
echo '{"weight_map": {"a": "part-1.safetensors"}}' >m/model.safetensors.index.json
expect "a shard is missing" 1 'm/part-1.safetensors: the file is missing; m/model.safetensors.index.json names it' -- $show m
echo '{"weight_map": {"a": "../m/part-1.safetensors"}}' >m/model.safetensors.index.json
expect "a shard outside the directory" 1 'weight_map.a must be the name of a file in the same directory' -- $show m
finish
