#!/usr/bin/env python3
"""make_golden.py [OUT]: writes the golden vectors of tests/golden.

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
All values are of an fp64 run of the Transformers model (its RMSNorm and rotary tables, which round to fp32
whatever the model's type, are replaced by the same formulas in fp64), rounded to the stored type.
"""
import json
import pathlib
import sys

import numpy as np
import safetensors
import torch
import transformers
from safetensors.numpy import save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama import modeling_llama

STEPS, B, T, PROMPT, GREEDY = 20, 3, 33, 9, 6
LR, BETAS, EPS, DECAY, CLIP, SMOOTH = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0, 0.1
MADE_BY = {"torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__,
           "safetensors": safetensors.__version__, "python": sys.version.split()[0], "lr": LR, "betas": BETAS, "eps": EPS,
           "weight_decay": DECAY, "clip": CLIP, "label_smoothing": SMOOTH, "prompt": PROMPT}

LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 4.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 24}
GPT2 = dict(vocab_size=101, n_positions=40, n_embd=36, n_layer=3, n_head=3, n_inner=50, layer_norm_epsilon=3e-5,
            bos_token_id=0, eos_token_id=0)
LLAMA = dict(vocab_size=101, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3, head_dim=10,
             intermediate_size=50, max_position_embeddings=64, rms_norm_eps=3e-5, bos_token_id=1, eos_token_id=2)
MODELS = {
    "gpt2-tanh": GPT2Config(**GPT2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
    "gpt2-erf": GPT2Config(**dict(GPT2, n_layer=2, n_embd=35, n_head=5, n_inner=None, activation_function="gelu")),
    "llama-untied": LlamaConfig(**dict(LLAMA, num_hidden_layers=3), rope_parameters={"rope_type": "default", "rope_theta": 300.0}),
    "llama-tied": LlamaConfig(**dict(LLAMA, num_attention_heads=4, num_key_value_heads=4, head_dim=12), tie_word_embeddings=True,
                              rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}),
    "llama3-bias": LlamaConfig(**dict(LLAMA, num_key_value_heads=2), attention_bias=True, mlp_bias=True,
                               rope_parameters=LLAMA3_ROPE),
}
SMOOTH_MODELS = ("gpt2-tanh",)
# Adam divides a gradient by its own size: an element whose gradient happens to be within rounding of 0 moves by up to
# lr in a direction that is a matter of rounding. These seeds have no such element (PyTorch's fp32 weights after
# 20 steps are within 1.2e-6 of its fp64 ones in every tensor), so the tolerance of 1e-5 means something.
SEEDS = {"gpt2-tanh": 2, "gpt2-erf": 2, "llama-untied": 4, "llama-tied": 1, "llama3-bias": 3}


def exact_norm(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


class ExactRotary(torch.nn.Module):
    """LlamaRotaryEmbedding whose frequencies and angles are fp64."""

    def __init__(self, config):
        super().__init__()
        rope, dim = config.rope_parameters, config.head_dim
        freq = rope["rope_theta"] ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        if rope["rope_type"] == "linear":
            freq = freq / rope["factor"]
        elif rope["rope_type"] == "llama3":
            old, wave = rope["original_max_position_embeddings"], 2 * torch.pi / freq
            mix = (old / wave - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            mix = mix.clamp(0, 1)
            freq = (1 - mix) * freq / rope["factor"] + mix * freq
        if rope["rope_type"] != "default":  # our reading of the formula is Transformers'
            theirs, _ = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu")
            assert torch.allclose(theirs.double(), freq, rtol=1e-6, atol=0)
        self.freq = freq

    def forward(self, x, position_ids):
        angle = position_ids[..., None].double() * self.freq
        both = torch.cat((angle, angle), dim=-1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)


def make_exact(model):
    """The fp64 truth: the same weights, nothing rounded to fp32 on the way."""
    model = model.double()
    for module in model.modules():
        if isinstance(module, modeling_llama.LlamaRMSNorm):
            module.forward = exact_norm.__get__(module)
    if isinstance(model, LlamaForCausalLM):
        model.model.rotary_emb = ExactRotary(model.config)
    return model


def build(config, seed):
    """A model with random values in every parameter: nothing stays 0 or 1, so that nothing can be left out unseen."""
    model = (GPT2LMHeadModel if config.model_type == "gpt2" else LlamaForCausalLM)(config)
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


def batches(config, seed):
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
    for s in range(STEPS):
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
    """Largest relative difference of PyTorch's fp32 run. GPT-2's fused qkv bias is left out: a key bias adds the same to
    every score of a query, so its gradient is zero by analysis and Adam makes steps of pure noise from it."""
    worst = 0.0
    for name in high:
        if name.startswith(prefix) and not name.endswith(".c_attn.bias"):
            worst = max(worst, relative(low[name], high[name]))
    return worst


def config_v4(text):
    """The same config in the spelling of Transformers 4."""
    c = json.loads(text)
    rope = c.pop("rope_parameters", None)
    if rope:
        c["rope_theta"] = rope.pop("rope_theta")
        c["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    c["torch_dtype"] = c.pop("dtype")
    c["transformers_version"] = "4.46.0"
    return json.dumps(c, indent=2, sort_keys=True) + "\n"


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    torch.set_num_threads(1)
    for name, config in MODELS.items():
        i = SEEDS[name]
        config.dtype = "float32"
        config._attn_implementation = "eager"
        d = out / name
        model = build(config, 1000 + i)
        model.save_pretrained(d)
        (d / "generation_config.json").unlink(missing_ok=True)
        (d / "config-v4.json").write_text(config_v4((d / "config.json").read_text()))
        ids, targets = batches(config, 2000 + i)
        low = run(build(config, 1000 + i), ids, targets, name in SMOOTH_MODELS)
        config._attn_implementation = "sdpa"  # eager attention rounds its softmax to fp32
        high = run(make_exact(build(config, 1000 + i)), ids, targets, name in SMOOTH_MODELS)
        stats = {"noise_grad": noise(low, high, "grad."), "noise_final": noise(low, high, "final."),
                 "noise_logits": relative(low["logits"], high["logits"])}
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


if __name__ == "__main__":
    main()
