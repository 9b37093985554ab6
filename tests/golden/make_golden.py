#!/usr/bin/env python3
"""make_golden.py [OUT [NAME...]]: writes the golden vectors of tests/golden, all or those named.

Made with Python 3.11, torch 2.15.0, transformers 5.24.0, numpy 2.4.6, safetensors 0.8.0; the versions that made a
file are in its metadata (made_by). `make check-peers` makes a virtual environment that can run this script.

Each directory is one tiny random model (no weight, norm or bias is 0 or 1 by construction; sizes divide nothing):
  config.json, model.safetensors   as Transformers writes them, fp32
  config-v4.json                   the same model in the spelling of Transformers 4 (rope_theta, torch_dtype)
  golden.safetensors:
    ids, targets   i32 (S,B,T)  S steps of a batch; a target of -100 is not counted
    logits         f32 (B,T,V)  of step 0's batch, before any update
    loss           f64 (3)      of step 0: sum over counted tokens, mean, how many
    grad.NAME      f32          gradient of that mean loss
    smooth_loss    f64 (2)      sum and mean with label smoothing 0.1
    smooth_grad.NAME            its gradients, for one model only
    greedy         i32 (B,G)    the G ids that follow the first PROMPT ids of step 0's batch
    losses, norms  f64 (S)      of S AdamW steps: mean loss before the update, gradient norm before clipping
    final.NAME     f32          the weights after these steps
    losses32, norms32           the same run in PyTorch's fp32
    noise_grad, noise_final, noise_logits   f64 (1): largest |fp32 - fp64| / |fp64| over the tensors of PyTorch's fp32 run
All values are of an fp64 run of the Transformers model (its RMSNorm, rotary tables and softmax, which round to fp32
whatever the model's type, are replaced by the same formulas in fp64), rounded to the stored type.
"""
import json
import math
import pathlib
import sys

import numpy as np
import safetensors
import torch
import transformers
from safetensors.numpy import save_file
from transformers import (AutoModelForCausalLM, BloomConfig, GPT2Config, GPTNeoXConfig, LlamaConfig, MistralConfig, Olmo2Config, Phi3Config,
                          Qwen2Config, Qwen3Config, Starcoder2Config)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

PROMPT, GREEDY = 9, 6
LR, BETAS, EPS, DECAY, CLIP, SMOOTH = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0, 0.1
MADE_BY = {"torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__,
           "safetensors": safetensors.__version__, "python": sys.version.split()[0], "lr": LR, "betas": BETAS, "eps": EPS,
           "weight_decay": DECAY, "clip": CLIP, "label_smoothing": SMOOTH, "prompt": PROMPT}

PLAIN_ROPE = {"rope_type": "default", "rope_theta": 300.0}
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 4.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 24}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 0.5}
GPT2 = dict(vocab_size=101, n_positions=40, n_embd=36, n_layer=3, n_head=3, n_inner=50, layer_norm_epsilon=3e-5,
            bos_token_id=0, eos_token_id=0)
LLAMA = dict(vocab_size=101, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3, head_dim=10,
             intermediate_size=50, max_position_embeddings=64, rms_norm_eps=3e-5, bos_token_id=1, eos_token_id=2)
# the other families: small files
GATED = dict(vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=26,
             max_position_embeddings=64, rms_norm_eps=3e-5, bos_token_id=1, eos_token_id=2, pad_token_id=None)
NARROW = dict(GATED, hidden_size=20, head_dim=6)  # heads * head_dim is not hidden_size
NEOX = dict(vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=26, max_position_embeddings=64,
            layer_norm_eps=3e-5, bos_token_id=1, eos_token_id=2)
BLOOM = dict(vocab_size=61, hidden_size=20, n_layer=2, n_head=5, layer_norm_epsilon=3e-5)
STARCODER2 = dict(vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=26,
                  max_position_embeddings=64, norm_epsilon=3e-5, bos_token_id=1, eos_token_id=2)
MODELS = {
    "gpt2-tanh": GPT2Config(**GPT2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
    "gpt2-erf": GPT2Config(**dict(GPT2, n_layer=2, n_embd=35, n_head=5, n_inner=None, activation_function="gelu")),
    "llama-untied": LlamaConfig(**dict(LLAMA, num_hidden_layers=3), rope_parameters=dict(PLAIN_ROPE)),
    "llama-tied": LlamaConfig(**dict(LLAMA, num_attention_heads=4, num_key_value_heads=4, head_dim=12), tie_word_embeddings=True,
                              rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}),
    "llama3-bias": LlamaConfig(**dict(LLAMA, num_key_value_heads=2), attention_bias=True, mlp_bias=True,
                               rope_parameters=LLAMA3_ROPE),
    "mistral-window": MistralConfig(**NARROW, sliding_window=7, rope_parameters=dict(PLAIN_ROPE)),
    "mistral-tied": MistralConfig(**dict(GATED, num_key_value_heads=4), sliding_window=None, tie_word_embeddings=True,
                                  rope_parameters=dict(YARN_ROPE)),
    "qwen2": Qwen2Config(**GATED, rope_parameters=dict(PLAIN_ROPE)),
    "qwen2-window": Qwen2Config(**dict(GATED, num_hidden_layers=3), use_sliding_window=True, sliding_window=6, max_window_layers=1,
                                tie_word_embeddings=True, rope_parameters={"rope_type": "dynamic", "rope_theta": 300.0, "factor": 2.0}),
    "qwen3": Qwen3Config(**NARROW, rope_parameters=dict(PLAIN_ROPE)),
    "qwen3-bias": Qwen3Config(**dict(GATED, head_dim=6), attention_bias=True, tie_word_embeddings=True,
                              rope_parameters=dict(YARN_ROPE, truncate=False, attention_factor=1.25)),
    "olmo2": Olmo2Config(**GATED, rope_parameters=dict(PLAIN_ROPE)),
    "olmo2-bias": Olmo2Config(**dict(GATED, num_key_value_heads=4), attention_bias=True, tie_word_embeddings=True,
                              rope_parameters=dict(LLAMA3_ROPE)),
    "phi3": Phi3Config(**GATED, sliding_window=9, rope_parameters=dict(PLAIN_ROPE)),
    # beyond the original positions from the first id on: Transformers changes factors in the middle of a sequence, a run here does not
    "phi3-long": Phi3Config(**dict(GATED, hidden_size=32), tie_word_embeddings=True, original_max_position_embeddings=8,
                            rope_parameters={"rope_type": "longrope", "rope_theta": 300.0, "partial_rotary_factor": 0.75,
                                             "short_factor": [1.0, 1.05, 1.3], "long_factor": [1.5, 2.25, 4.5]}),
    "neox": GPTNeoXConfig(**NEOX, rope_parameters=dict(PLAIN_ROPE, partial_rotary_factor=0.5)),
    "neox-sequential": GPTNeoXConfig(**NEOX, use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True, hidden_act="gelu_new",
                                     rope_parameters={"rope_type": "linear", "rope_theta": 300.0, "factor": 1.5, "partial_rotary_factor": 1.0}),
    "bloom": BloomConfig(**BLOOM),
    "bloom-untied": BloomConfig(**dict(BLOOM, n_head=4), tie_word_embeddings=False),
    # the example of docs/add-a-model.md
    "starcoder2": Starcoder2Config(**STARCODER2, sliding_window=7, rope_parameters=dict(PLAIN_ROPE)),
}
SMOOTH_MODELS = ("gpt2-tanh",)
LARGE = ("gpt2-tanh", "gpt2-erf", "llama-untied", "llama-tied", "llama3-bias")
SHARDED = ("mistral-window", "phi3", "bloom")  # in several files
# Adam divides a gradient by its own size: an element whose gradient happens to be within rounding of 0 moves by up to
# lr in a direction that is a matter of rounding. These seeds have no such element (PyTorch's fp32 weights after
# all steps are within 1.2e-6 of its fp64 ones in every tensor), so the tolerance of 1e-5 means something.
SEEDS = {"gpt2-tanh": 2, "gpt2-erf": 2, "llama-untied": 4, "llama-tied": 1, "llama3-bias": 3, "mistral-window": 1, "mistral-tied": 1, "qwen2": 1,
         "qwen2-window": 3, "qwen3": 2, "qwen3-bias": 1, "olmo2": 1, "olmo2-bias": 1, "phi3": 1, "phi3-long": 1, "neox": 1, "neox-sequential": 1,
         "bloom": 1, "bloom-untied": 1, "starcoder2": 1}


def sizes(name):
    """Steps, sequences, tokens."""
    return (20, 3, 33) if name in LARGE else (10, 2, 25)


def exact_norm(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def yarn(rope, dim, freq):
    """What _compute_yarn_parameters does, in fp64; and the factor of cosines and sines."""
    def pair(turns):
        return dim * math.log(rope["original_max_position_embeddings"] / (turns * 2 * math.pi)) / (2 * math.log(rope["rope_theta"]))
    low, high = pair(rope["beta_fast"]), pair(rope["beta_slow"])
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    slowed = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    return freq / rope["factor"] * slowed + freq * (1 - slowed), rope.get("attention_factor") or 0.1 * math.log(rope["factor"]) + 1


class ExactRotary(torch.nn.Module):
    """A rotary embedding of Transformers whose frequencies and angles are fp64."""

    def __init__(self, config):
        super().__init__()
        rope, self.factor = config.rope_parameters, 1.0
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        dim = int(head * rope.get("partial_rotary_factor", 1.0))
        freq = rope["rope_theta"] ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        if rope["rope_type"] == "linear":
            freq = freq / rope["factor"]
        elif rope["rope_type"] == "llama3":
            old, wave = rope["original_max_position_embeddings"], 2 * torch.pi / freq
            mix = (old / wave - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            mix = mix.clamp(0, 1)
            freq = (1 - mix) * freq / rope["factor"] + mix * freq
        elif rope["rope_type"] == "yarn":
            freq, self.factor = yarn(rope, dim, freq)
        elif rope["rope_type"] == "longrope":
            old = config.original_max_position_embeddings
            freq = freq / torch.tensor(rope["long_factor"], dtype=torch.float64)
            self.factor = math.sqrt(1 + math.log(config.max_position_embeddings / old) / math.log(old))
        if rope["rope_type"] != "default":  # our reading of the formula is Transformers'
            theirs, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=config.max_position_embeddings)
            assert torch.allclose(theirs.double(), freq, rtol=1e-6, atol=0) and abs(factor / self.factor - 1) < 1e-12
        self.freq = freq

    def forward(self, x, position_ids):
        angle = position_ids[..., None].double() * self.freq
        both = torch.cat((angle, angle), dim=-1)
        return (both.cos() * self.factor).to(x.dtype), (both.sin() * self.factor).to(x.dtype)


their_softmax = torch.nn.functional.softmax


def exact_softmax(x, dim=None, _stacklevel=3, dtype=None):
    return their_softmax(x, dim=dim, dtype=None if x.dtype == torch.float64 else dtype)


def make_exact(model):
    """The fp64 truth: the same weights, nothing rounded to fp32 on the way."""
    model = model.double()
    torch.nn.functional.softmax = exact_softmax
    for parent in list(model.modules()):
        if type(parent).__name__.endswith("RMSNorm"):
            parent.forward = exact_norm.__get__(parent)
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RotaryEmbedding"):
                setattr(parent, name, ExactRotary(model.config))
    return model


def build(config, seed):
    """A model with random values in every parameter: nothing stays 0 or 1, so that nothing can be left out unseen."""
    model = AutoModelForCausalLM.from_config(config)
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.randn(p.shape, generator=gen)
            if p.dim() == 1:
                p.copy_((1.0 if "norm" in name or ".ln_" in name else 0.0) * name.endswith("weight") + 0.2 * x)
            else:
                table = 0.2 if config.tie_word_embeddings else 0.5
                p.copy_(x * (table if "wte" in name or "wpe" in name or "embed" in name else 1.4 / p.shape[-1] ** 0.5))
    return model.eval()


def batches(config, seed, STEPS, B, T):
    """Ids with some order (each text follows a noisy rule, so there is something to learn) and some targets masked out."""
    gen = np.random.default_rng(seed)
    text = np.empty((STEPS, B, T + 1), np.int64)
    text[..., 0] = gen.integers(0, config.vocab_size, (STEPS, B))
    for t in range(T):
        rule = (text[..., t] * 7 + 3) % config.vocab_size
        text[..., t + 1] = np.where(gen.random((STEPS, B)) < 0.7, rule, gen.integers(0, config.vocab_size, (STEPS, B)))
    ids, targets = text[..., :-1].copy(), text[..., 1:].copy()
    targets[gen.random(targets.shape) < 0.2] = -100
    targets[:, 1, :5] = -100
    return torch.from_numpy(ids), torch.from_numpy(targets)


def loss_sum(model, ids, targets, smoothing=0.0):
    logits = model(input_ids=ids, use_cache=False).logits
    flat = torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1), ignore_index=-100,
                                             reduction="sum", label_smoothing=smoothing)
    return flat, logits


def groups(model):
    decay = [p for n, p in model.named_parameters() if p.dim() >= 2]
    rest = [p for n, p in model.named_parameters() if p.dim() < 2]
    return [{"params": decay, "weight_decay": DECAY}, {"params": rest, "weight_decay": 0.0}]


def run(model, ids, targets, smooth):
    """Everything that is stored, in the model's own type."""
    out = {}
    total, logits = loss_sum(model, ids[0], targets[0])
    count = int((targets[0] >= 0).sum())
    (total / count).backward()
    out["logits"], out["loss"] = logits.detach(), torch.tensor([total.item(), total.item() / count, count], dtype=torch.float64)
    for name, p in model.named_parameters():
        out["grad." + name] = p.grad.clone()
    model.zero_grad()
    total, _ = loss_sum(model, ids[0], targets[0], SMOOTH)
    (total / count).backward()
    out["smooth_loss"] = torch.tensor([total.item(), total.item() / count], dtype=torch.float64)
    if smooth:
        for name, p in model.named_parameters():
            out["smooth_grad." + name] = p.grad.clone()
    seen = ids[0][:, :PROMPT]
    with torch.no_grad():
        for _ in range(GREEDY):
            seen = torch.cat((seen, model(input_ids=seen, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)), 1)
    out["greedy"] = seen[:, PROMPT:]

    opt = torch.optim.AdamW(groups(model), lr=LR, betas=BETAS, eps=EPS)
    losses, norms = [], []
    for s in range(len(ids)):
        opt.zero_grad()
        total, _ = loss_sum(model, ids[s], targets[s])
        mean = total / (targets[s] >= 0).sum()
        mean.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        losses.append(mean.item())
        opt.step()
    out["losses"], out["norms"] = torch.tensor(losses, dtype=torch.float64), torch.tensor(norms, dtype=torch.float64)
    for name, p in model.named_parameters():
        out["final." + name] = p.detach().clone()
    return out


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def noise(low, high, prefix):
    """Largest relative difference of PyTorch's fp32 run. Fused qkv biases are left out: a key bias that is not rotated adds the same
    to every score of a query, so its gradient is zero by analysis and Adam makes steps of pure noise from it."""
    worst = 0.0
    for name in high:
        if name.startswith(prefix) and not name.endswith((".c_attn.bias", ".query_key_value.bias")):
            worst = max(worst, relative(low[name], high[name]))
    return worst


def config_v4(text):
    """The same config in the spelling of Transformers 4."""
    c = json.loads(text)
    rope = c.pop("rope_parameters", None)
    if c["model_type"] == "gpt_neox":
        c["rotary_emb_base"], c["rotary_pct"] = rope.pop("rope_theta"), rope.pop("partial_rotary_factor")
    elif rope:
        c["rope_theta"] = rope.pop("rope_theta")
    if rope and "partial_rotary_factor" in rope:
        c["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    if rope and c["model_type"] == "phi3" and rope["rope_type"] == "longrope":
        rope = {"type": "longrope", "short_factor": rope["short_factor"], "long_factor": rope["long_factor"]}
    if rope:
        c["rope_scaling"] = None if rope.get("rope_type") == "default" else rope
    if c["model_type"] == "bloom":  # as the files of BigScience have it
        c["n_embed"], c["num_attention_heads"], c["seq_length"] = c.pop("hidden_size"), c.pop("n_head"), 2048
    c["torch_dtype"] = c.pop("dtype")
    c["transformers_version"] = "4.46.0"
    return json.dumps(c, indent=2, sort_keys=True) + "\n"


def make(out, name, seed):
    config = MODELS[name]
    config.dtype = "float32"
    d = out / name
    model = build(config, 1000 + seed)
    model.save_pretrained(d, max_shard_size="12KB" if name in SHARDED else "1GB")
    (d / "generation_config.json").unlink(missing_ok=True)
    (d / "config-v4.json").write_text(config_v4((d / "config.json").read_text()))
    ids, targets = batches(config, 2000 + seed, *sizes(name))
    config._attn_implementation = "eager"
    torch.nn.functional.softmax = their_softmax
    low = run(build(config, 1000 + seed), ids, targets, name in SMOOTH_MODELS)
    config._attn_implementation = "sdpa" if name in LARGE else "eager"
    high = run(make_exact(build(config, 1000 + seed)), ids, targets, name in SMOOTH_MODELS)
    stats = {"noise_grad": noise(low, high, "grad."), "noise_final": noise(low, high, "final."),
             "noise_logits": relative(low["logits"], high["logits"])}
    if config.model_type == "gpt_neox":  # the head has another name in files
        high = {k.replace(".lm_head.", ".embed_out."): v for k, v in high.items()}
    tensors = {"ids": ids.int(), "targets": targets.int(), "losses32": low["losses"], "norms32": low["norms"]}
    for key, value in high.items():
        keep = value.dtype == torch.float64 and key in ("loss", "smooth_loss", "losses", "norms")
        tensors[key] = value if keep else value.int() if key == "greedy" else value.float()
    assert torch.equal(low["greedy"], high["greedy"])
    assert stats["noise_final"] < 2e-6, f"{name}: PyTorch's own fp32 noise is {stats['noise_final']:.1e}: take another seed"
    for key, value in stats.items():
        tensors[key] = torch.tensor([value], dtype=torch.float64)
    save_file({k: np.ascontiguousarray(v.numpy()) for k, v in tensors.items()}, d / "golden.safetensors",
              metadata={"made_by": json.dumps(MADE_BY, sort_keys=True)})
    drift = lambda k: ((low[k] - high[k]) / high[k]).abs().max().item()
    print(f"{name}: loss {high['loss'][1]:.4f} -> {high['losses'][-1]:.4f}, norms {high['norms'][0]:.3f} -> {high['norms'][-1]:.3f}; "
          f"fp32 noise: {' '.join(f'{k[6:]} {v:.1e}' for k, v in stats.items())} losses {drift('losses'):.1e} norms {drift('norms'):.1e}")


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    torch.set_num_threads(1)
    for name in sys.argv[2:] or MODELS:
        make(out, name, SEEDS[name])


if __name__ == "__main__":
    main()
