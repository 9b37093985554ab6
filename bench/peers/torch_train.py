#!/usr/bin/env python3
"""torch_train.py MODEL DATA STEPS B T PRECISION THREADS [compile]: PyTorch's side of bench_peers.py, a process of its own.

MODEL is a directory or config.json of Transformers; weights are random. DATA is PREFIX of a 16-bit token file. The
optimizer is torch.optim.AdamW with its fused CPU kernel where there is one. Prints one JSON line: seconds from
the environment's BENCH_START to the beginning of the first step, and the seconds of each step.
"""
import json
import os
import sys
import time

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM


def main():
    model_path, data, steps, B, T, precision, threads = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]), sys.argv[6], int(sys.argv[7])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(model_path)
    for key in ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout"):
        if hasattr(config, key):
            setattr(config, key, 0.0)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").train()
    if "compile" in sys.argv[8:]:
        model.forward = torch.compile(model.forward)
    matrices, rest = [p for p in model.parameters() if p.dim() >= 2], [p for p in model.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                            lr=1e-4, betas=(0.9, 0.95), fused=True)
    tokens = np.memmap(data + ".bin", np.uint16, "r")
    begin, seconds, losses = time.time() - float(os.environ["BENCH_START"]), [], []
    for s in range(steps):
        t0 = time.perf_counter()
        rows = np.stack([tokens[i * T:i * T + T + 1] for i in range(s * B, s * B + B)]).astype(np.int64)
        x, y = torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())
        logits = model(input_ids=x, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - t0)
    print(json.dumps({"first_step_begins_s": begin, "step_s": seconds, "loss": losses}))


main()
